"""Peaks of memory of programs whose measured peak was published."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.published.transformers import Bert

Sizes = Mapping[str, Any]
_MIB = 2**20


def vit_l_adam_gb(sizes: Sizes, precision: str) -> float:
    """GB: pytorch/tutorials, optimizer_step_in_backward_tutorial.py."""
    from torchvision import models  # not at the top: it costs seconds

    with torch.device("cuda"):
        model = models.vit_l_16()
    optimizers: list[torch.optim.Optimizer] = []
    if sizes["fused_into_backward"]:
        for parameter in model.parameters():
            own = torch.optim.Adam([parameter], foreach=False)

            def update(_: Any, own: torch.optim.Adam = own) -> None:
                own.step()
                own.zero_grad()

            parameter.register_post_accumulate_grad_hook(update)
    else:
        optimizers.append(torch.optim.Adam(model.parameters()))
    for _ in range(3):
        model(torch.rand(1, 3, 224, 224).cuda()).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cuda.max_memory_allocated() / 1e9


def hf_bert_reserved_mib(sizes: Sizes, precision: str) -> float:
    """MiB reserved: huggingface/transformers, performance.mdx; AdamW in a loop, gradients set to zero, not freed."""
    with torch.device("cuda"):
        model = Bert(
            1024, 24, 16, "classify", vocabulary=30522, checkpointed=sizes.get("checkpoint", False),
            keeps_input=sizes.get("old_softmax", False),
        ).train()  # fmt: skip
    if sizes.get("load_only"):
        return torch.cuda.memory_reserved() / _MIB
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp_fp16")
    batch, rounds = sizes["batch"], sizes.get("accumulate", 1)
    for _ in range(3):
        for _ in range(rounds):
            tokens, kinds, mask = (torch.zeros(batch, 512, dtype=torch.long).cuda() for _ in range(3))
            labels = torch.zeros(batch, dtype=torch.long).cuda()
            with torch.autocast("cuda", torch.float16, enabled=scaler.is_enabled()):
                loss = functional.cross_entropy(model(tokens, kinds, mask), labels) / rounds
            scaler.scale(loss).backward()
            loss = loss.detach()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)
    return torch.cuda.max_memory_reserved() / _MIB


def amp_recipe_mib(sizes: Sizes, precision: str) -> float:
    """MiB: pytorch/tutorials, amp_recipe.py: its FP32 run, then in the same process the mixed one."""
    batches = [torch.randn(512, 4096, device="cuda") for _ in range(50)]
    targets = [torch.randn(512, 4096, device="cuda") for _ in range(50)]
    # The tutorial's variables are global: a run's network lives until the next one takes its name.
    model, optimizer = _recipe_model()
    for enabled in (False, True) if precision == "amp_fp16" else (False,):
        if enabled:
            model, optimizer = _recipe_model()
        scaler = torch.amp.GradScaler("cuda", enabled=enabled)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            for batch, target in zip(batches, targets, strict=True):
                with torch.autocast("cuda", torch.float16, enabled=enabled):
                    output = model(batch)
                    loss = functional.mse_loss(output, target)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=False)
    return torch.cuda.max_memory_allocated() / _MIB


def _recipe_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = (nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
    model = nn.Sequential(*layers).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.001, foreach=False)


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(200, 200) for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def adam_simple_bytes(sizes: Sizes, precision: str) -> float:
    """MiB: the peak of one of three Adams after each other (in a loop, foreach, fused) on twenty linear layers."""
    peaks, kept = [], []
    for foreach, fused in ((False, False), (True, False), (False, True)):
        model = _Chain().to("cuda:0")
        kept.append(torch.optim.Adam(model.parameters(), lr=0.01, foreach=foreach, fused=fused))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        _train_chain(model, kept[-1])
        peaks.append(torch.cuda.max_memory_allocated() / _MIB)
    return float(peaks[sizes["which"]])


def _train_chain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    data, target = torch.randn(64, 200, device="cuda:0"), torch.randint(0, 1, (64,), device="cuda:0")
    for _ in range(5):
        optimizer.zero_grad()
        output = model(data)
        loss = functional.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
