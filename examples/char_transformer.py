"""A character-level transformer language model, trained and then asked to write.

A small GPT in the manner of PyTorch's language modelling examples: fused AdamW, a warm-up and cosine schedule, BF16 or
FP16 autocast where the GPU is fast at it, `scaled_dot_product_attention`, and tokens per second.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TEXT = """She sells sea shells by the sea shore. The shells she sells are sea shells, I am sure.
Peter Piper picked a peck of pickled peppers. A peck of pickled peppers Peter Piper picked.
How much wood would a woodchuck chuck if a woodchuck could chuck wood?
"""


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(split).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.project(y.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class CharTransformer(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.length = length
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # tied, as in GPT-2
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))
        return logits

    @torch.no_grad()
    def generate(self, tokens: Tensor, count: int) -> Tensor:
        self.eval()
        for _ in range(count):
            logits = self(tokens[:, -self.length :])[:, -1]
            chosen = torch.multinomial(F.softmax(logits.float(), dim=-1), num_samples=1)
            tokens = torch.cat((tokens, chosen), dim=1)
        return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--generate", type=int, default=60)
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    letters = sorted(set(TEXT))
    numbers = {letter: number for number, letter in enumerate(letters)}
    data = torch.tensor([numbers[letter] for letter in TEXT * 20])

    shape = options.width, options.heads, options.layers, options.dropout
    model = CharTransformer(len(letters), options.length, *shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), fused=True)
    warmup = max(options.steps // 10, 1)

    def rate(step: int) -> float:
        done = (step - warmup) / max(options.steps - warmup, 1)
        return (step + 1) / warmup if step < warmup else 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    dtype = torch.bfloat16 if bf16 else torch.float16
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {len(letters)} characters, {dtype} on {torch.cuda.get_device_name()}")

    started = time.perf_counter()
    for step in range(options.steps):
        begins = torch.randint(len(data) - options.length - 1, (options.batch_size,)).tolist()
        rows = torch.stack([data[begin : begin + options.length + 1] for begin in begins])
        rows = rows.pin_memory().to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=dtype):
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if step % max(options.steps // 5, 1) == 0 or step == options.steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f} norm {norm.item():.2f} lr {schedule.get_last_lr()[0]:.1e}")
    torch.cuda.synchronize()
    tokens = options.steps * options.batch_size * options.length
    print(f"{tokens / (time.perf_counter() - started):.0f} tokens per second, peak ", end="")
    print(f"{torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    written = model.generate(torch.tensor([[numbers["S"]]], device=device), options.generate)
    print("wrote: " + "".join(letters[number] for number in written[0].tolist()).replace("\n", " "))


if __name__ == "__main__":
    main()
