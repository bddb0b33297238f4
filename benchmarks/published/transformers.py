"""Transformers, trained and evaluated: BERT, ViT, GPT and single layers."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.published.layers import DecoderLayer, EncoderLayer, Gpt2Layer
from benchmarks.published.timing import dtype_of, is_amp, wall_seconds

Sizes = Mapping[str, Any]
Step = Callable[[], object]
Wrap = Callable[[nn.Module], nn.Module]
_MASKED = -10000.0
_LOSS_SCALE = 1024.0


class Bert(nn.Module):
    """BERT with a head for "squad" (start and end), "pretrain" (words and next sentence) or "classify"."""

    def __init__(
        self,
        width: int,
        layers: int,
        heads: int,
        head: str,
        *,
        vocabulary: int = 30528,
        checkpointed: bool = False,
        keeps_input: bool = False,
    ) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(count, width) for count in (vocabulary, 512, 2))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, 0.1, norm_first=False, keeps_input=keeps_input) for _ in range(layers)
        )
        self.head, self.checkpointed = head, checkpointed
        if head != "squad":
            self.pool = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)
        if head == "pretrain":
            self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
            self.bias = nn.Parameter(torch.zeros(vocabulary))

    def _encode(self, tokens: Tensor, kinds: Tensor, mask: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.dropout(self.norm(self.words(tokens) + places + self.kinds(kinds)))
        hidden = (1.0 - mask[:, None, None, :].to(self.words.weight.dtype)) * _MASKED
        for layer in self.layers:
            if self.checkpointed and self.training:
                x = checkpoint(layer, x, hidden, use_reentrant=True)
            else:
                x = layer(x, hidden)
        encoded: Tensor = x
        return encoded

    def forward(self, tokens: Tensor, kinds: Tensor, mask: Tensor, picked: Tensor | None = None) -> Any:
        x = self._encode(tokens, kinds, mask)
        if self.head == "squad":
            return self.out(x)
        pooled = torch.tanh(self.pool(x[:, 0]))
        if picked is None:
            return self.out(self.dropout(pooled))
        chosen = x.reshape(-1, x.shape[-1]).index_select(0, picked)
        chosen = self.transform_norm(functional.gelu(self.transform(chosen)))
        return functional.linear(chosen, self.words.weight, self.bias), self.out(pooled)


class MasterWeights:
    """Apex O2: a model in FP16 whose FP32 copy is what the optimizer changes."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = list(model.parameters())
        self.masters = [weight.detach().float() for weight in self.weights]

    def take_gradients(self) -> None:
        """Gradients in FP32, without the loss' scale."""
        gradients = []
        for master, weight in zip(self.masters, self.weights, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
            gradients.append(master.grad)
        torch._foreach_mul_(gradients, 1 / _LOSS_SCALE)

    def give_weights(self) -> None:
        """The changed weights, back in FP16."""
        torch._foreach_copy_([weight.data for weight in self.weights], self.masters)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long, device="cuda")


def _bert_loss(model: nn.Module, sizes: Sizes) -> Callable[[], Tensor]:
    batch, rows = sizes["batch"], sizes["seq"]
    tokens, kinds, mask = (_zeros(batch, rows) for _ in range(3))
    place, picked = _zeros(batch), _zeros(batch * sizes.get("masked", 20))

    def squad() -> Tensor:
        start, end = model(tokens, kinds, mask).split(1, dim=-1)
        losses = [functional.cross_entropy(logits.squeeze(-1), place) for logits in (start, end)]
        return (losses[0] + losses[1]) / 2

    def pretrain() -> Tensor:
        words, sentence = model(tokens, kinds, mask, picked)
        return functional.cross_entropy(words, picked) + functional.cross_entropy(sentence, place)

    return squad if sizes["head"] == "squad" else pretrain


def bert_step(sizes: Sizes, precision: str, wrap: Wrap = lambda made: made) -> Step:
    """One step of fine-tuning or pre-training: gradients accumulated and clipped, fused AdamW."""
    with torch.device("cuda"):
        model: nn.Module = Bert(sizes["hidden"], sizes["layers"], sizes["heads"], sizes["head"])
    o2, amp, rounds = precision == "o2", is_amp(precision), sizes.get("accumulate", 1)
    model = wrap(model.half() if o2 else model)
    copies = MasterWeights(model) if o2 else None
    changed = copies.masters if copies else list(model.parameters())
    optimizer = torch.optim.AdamW(changed, lr=1e-5, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp_fp16")
    loss_of = _bert_loss(model, sizes)

    def step() -> None:
        for _ in range(rounds):
            with torch.autocast("cuda", dtype_of(precision), enabled=amp):
                loss = loss_of() / rounds
            (loss.float() * _LOSS_SCALE if o2 else scaler.scale(loss)).backward()
        if copies:
            copies.take_gradients()
        else:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(changed, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if copies:
            copies.give_weights()

    return step


def bert_train(sizes: Sizes, precision: str) -> float:
    """Sequences per second."""
    sequences = sizes["batch"] * sizes.get("accumulate", 1)
    return float(sequences / wall_seconds(bert_step(sizes, precision), 2, 2))


def bert_infer(sizes: Sizes, precision: str) -> float:
    """Sequences per second."""
    with torch.device("cuda"):
        model = Bert(sizes["hidden"], sizes["layers"], sizes["heads"], "squad").eval()
    if precision == "fp16":
        model = model.half()
    tokens, kinds, mask = (_zeros(sizes["batch"], sizes["seq"]) for _ in range(3))
    with torch.no_grad():
        return float(sizes["batch"] / wall_seconds(lambda: model(tokens, kinds, mask), 5))


def vit_infer(sizes: Sizes, precision: str) -> float:
    """Milliseconds of a batch through ViT-B/16 as in transformers."""
    batch, width = sizes["batch"], 768
    with torch.device("cuda"):
        patches = nn.Conv2d(3, width, 16, 16)
        first, places = torch.zeros(1, 1, width), torch.zeros(1, 197, width)
        layers = nn.Sequential(*[EncoderLayer(width, 12, 0.0, norm_first=True) for _ in range(12)]).eval()
        norm, head = nn.LayerNorm(width), nn.Linear(width, 1000)
    images = torch.randn(batch, 3, 224, 224, device="cuda")

    def call() -> None:
        x = patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((first.expand(batch, -1, -1), x), 1) + places
        head(norm(layers(x))[:, 0])

    with torch.no_grad():
        return 1e3 * wall_seconds(call, 10)


def layer_tflops(sizes: Sizes, precision: str) -> float:
    """TFLOP/s of one layer in FP16 as mli/transformers-benchmarks counts them."""
    width, batch, rows = sizes["hidden"], sizes["batch"], sizes["seq"]
    with torch.device("cuda"):
        bert = EncoderLayer(width, sizes["heads"], 0.1, norm_first=False)
        layer = (bert if sizes["kind"] == "bert" else Gpt2Layer(width, sizes["heads"])).half()
    x = torch.randn(batch, rows, width, device="cuda", dtype=torch.float16)
    flops = 1e-12 * (24 * batch * rows * width * width + 4 * batch * width * rows * rows)
    if sizes["mode"] == "fwd":
        return float(flops / wall_seconds(lambda: layer(x), 5))
    return float(3 * flops / wall_seconds(lambda: layer(x).sum().backward(), 5))


class Gpt(nn.Module):
    """A GPT whose loss is its result."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, vocabulary, bias = sizes["hidden"], sizes["vocab"], sizes.get("bias", True)
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(sizes["seq"], width)
        fused, in_python = sizes.get("attention", "flash") == "flash", sizes.get("gelu", "aten") == "python"
        self.layers = nn.ModuleList(
            DecoderLayer(width, sizes["heads"], sizes["seq"], bias=bias, fused=fused, gelu_in_python=in_python)
            for _ in range(sizes["layers"])
        )
        self.norm, self.head = nn.LayerNorm(width, bias=bias), nn.Linear(width, vocabulary, bias=False)
        if sizes.get("tied", True):
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1), ignore_index=-1)


def _gpt_step(sizes: Sizes, precision: str) -> Step:
    with torch.device("cuda"):
        model = Gpt(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=sizes.get("fused", False) or None)
    tokens, rounds = _zeros(sizes["batch"], sizes["seq"]), sizes.get("accumulate", 1)

    def step() -> None:
        for _ in range(rounds):
            with torch.autocast("cuda", dtype_of(precision), enabled=is_amp(precision)):
                loss = model(tokens)
            (loss / rounds).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt_iter_ms(sizes: Sizes, precision: str) -> float:
    """Milliseconds of a training step."""
    return 1e3 * wall_seconds(_gpt_step(sizes, precision))


def gpt_tokens(sizes: Sizes, precision: str) -> float:
    """Tokens per second in training."""
    tokens = sizes["batch"] * sizes["seq"] * sizes.get("accumulate", 1)
    return float(tokens / wall_seconds(_gpt_step(sizes, precision), 2, 2))
