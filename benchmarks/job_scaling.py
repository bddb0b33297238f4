"""A data-parallel training past one rack: 8, 64, 512, 4,096 ranks, by priced streams, compared with published scaling.

One step of the model runs on a virtual GPU, on shapes only; events say when each gradient, or each block, is ready. Two
streams are laid out as DDP and FSDP do it, one that computes and one that communicates:

- DDP: gradients in buckets of 25 MB, in the order in which they become ready; a bucket is reduced once it is full and
  the one before it is done (PyTorch, DistributedDataParallel).
- FSDP: a block's parameters are gathered while the one before it computes, forward and backward; its gradients are
  scattered while the next one computes (PyTorch, FullyShardedDataParallel, FULL_SHARD with backward prefetch).

What a collective costs is the virtual GPU's law inside a node, and between nodes each GPU's own adapter with its share
of the message, by a ring or a tree, whichever is shorter, as NCCL chooses. All ranks wait for the slowest, whose lag
grows with their number (`vgpu.device.cost.straggler_ratio`). Not in it: congestion, failures, loading of data,
checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vgpu
from benchmarks.measure import save
from vgpu.device.cost import collective_seconds, straggler_ratio
from vgpu.device.spec import Interconnect, get_interconnect

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""DDP's, and its smaller first one (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)."""
RANKS = (8, 64, 512, 4096)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes of so many GPUs; `between` joins each GPU to the other nodes."""

    gpu: str
    per_node: int
    within: Interconnect
    between: Interconnect

    def seconds(self, name: str, bytes: float, ranks: int) -> float:
        """Of a collective among the first `ranks` GPUs; bytes as `collective_seconds` has them."""
        local = min(ranks, self.per_node)
        nodes = -(-ranks // self.per_node)
        if nodes == 1:
            return collective_seconds(self.within, name, bytes, local)
        if name == "all_reduce":
            inside = 2 * collective_seconds(self.within, "reduce_scatter", bytes, local)
            return inside + self._between(name, bytes / local, nodes)
        # All adapters of a node work at once, each for one GPU's share; NVLink hands the rest on meanwhile.
        return max(
            collective_seconds(self.within, name, bytes * local / ranks, local),
            self._between(name, bytes / local, nodes),
        )

    def _between(self, name: str, bytes: float, nodes: int) -> float:
        ring = collective_seconds(self.between, name, bytes, nodes)
        passes = 2 if name == "all_reduce" else 1
        wire = passes * bytes / self.between.bandwidth_bytes_per_second
        filling = passes * math.ceil(math.log2(nodes)) * self.between.latency_seconds
        tree = self.between.start_seconds + filling + wire + 2 * math.sqrt(filling * wire)
        return min(ring, tree)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One rank's step by itself, in seconds."""

    ready: tuple[tuple[float, int], ...]
    """When each gradient is there, since the step began, and its bytes; in that order."""
    backward_ends: float
    ends: float


def ddp_step(step: Step, cluster: Cluster, ranks: int) -> float:
    """Seconds of a step of so many ranks; the slowest computes as long as `straggler_ratio` says."""
    slow = 1 + straggler_ratio(ranks)
    communicated, filled, limit = 0.0, 0, FIRST_BUCKET_BYTES
    for number, (ready, bytes) in enumerate(step.ready):
        filled += bytes
        if filled >= limit or number == len(step.ready) - 1:
            communicated = max(communicated, ready * slow) + cluster.seconds("all_reduce", filled, ranks)
            filled, limit = 0, BUCKET_BYTES
    return max(step.backward_ends * slow, communicated) + (step.ends - step.backward_ends) * slow


def fsdp_step(forward: float, backward: float, blocks: int, bytes: float, cluster: Cluster, ranks: int) -> float:
    """Seconds of a step of equal blocks of so many bytes of parameters; `forward`, `backward`: seconds of one block."""
    slow = 1 + straggler_ratio(ranks)
    gather = cluster.seconds("all_gather", bytes, ranks)
    scatter = cluster.seconds("reduce_scatter", bytes, ranks)
    compute = wire = began = 0.0
    scattering = False
    for seconds, scatters in [(forward, False)] * blocks + [(backward, True)] * blocks:
        wire = max(wire, began) + gather  # not before the block ahead of it has begun
        begins = max(compute, wire)
        if scattering:  # the gradients of the block that has just been computed
            wire = max(wire, compute) + scatter
        began, compute, scattering = begins, begins + seconds * slow, scatters
    return max(compute, wire) + scatter


def record(make: Callable[[], nn.Module], inputs: Callable[[], Tensor], gpu: str, dtype: torch.dtype | None) -> Step:
    """A warm step of the model on the virtual GPU, without values."""
    with vgpu.attach(gpu, values=False):
        model = make().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = inputs().cuda()
        marks: list[tuple[Any, int]] = []

        def mark(parameter: Tensor) -> None:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append((event, parameter.numel() * parameter.element_size()))

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(mark)
        for _ in range(3):
            marks.clear()
            begins, middle, ends = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            begins.record()
            with torch.autocast("cuda", dtype=dtype or torch.float16, enabled=dtype is not None):
                loss = model(data).float().sum()
            loss.backward()
            middle.record()
            optimizer.step()
            optimizer.zero_grad()
            ends.record()
            torch.cuda.synchronize()
        ready = tuple((begins.elapsed_time(event) / 1e3, bytes) for event, bytes in marks)
        return Step(ready=ready, backward_ends=begins.elapsed_time(middle) / 1e3, ends=begins.elapsed_time(ends) / 1e3)


class Block(nn.Module):
    """One transformer layer of GPT's kind."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, tokens, width))
        grown: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))
        return grown


def block_seconds(width: int, heads: int, batch: int, tokens: int, gpu: str) -> tuple[float, float, int]:
    """Forward and backward of one block in bfloat16, and its parameters."""
    with vgpu.attach(gpu, values=False):
        block = Block(width, heads).cuda()
        data = torch.randn(batch, tokens, width, device="cuda", requires_grad=True)
        for _ in range(3):
            begins, middle, ends = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            begins.record()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = block(data)
            middle.record()
            out.float().sum().backward()
            ends.record()
            torch.cuda.synchronize()
        parameters = sum(parameter.numel() for parameter in block.parameters())
        return begins.elapsed_time(middle) / 1e3, middle.elapsed_time(ends) / 1e3, parameters


def cluster(gpu: str, per_node: int, within: str, between: str) -> Cluster:
    """By the names that `python -m vgpu list` shows."""
    return Cluster(gpu=gpu, per_node=per_node, within=get_interconnect(within), between=get_interconnect(between))


CSC = "github mvsjober/ml-benchmarks@0380e79, results.md, DDP, synthetic, 2023-09-28"
MOSAIC = "github mosaicml/llm-foundry@061f2c7, scripts/train/benchmarking/README.md"


def resnet50(batch: int) -> tuple[Callable[[], nn.Module], Callable[[], Tensor]]:
    from torchvision.models import resnet50 as make

    return make, lambda: torch.randn(batch, 3, 224, 224)


def published() -> list[dict[str, Any]]:
    """Throughput per GPU on more ranks over that on fewer: as published, and as the streams have it."""
    rows: list[dict[str, Any]] = []

    def row(what: str, source: str, few: int, many: int, reported: float, seconds: Callable[[int], float]) -> None:
        ratio = seconds(few) / seconds(many)
        rows.append(
            {"what": what, "source": source, "ranks": [few, many], "published": round(reported, 3),
             "modelled": round(ratio, 3), "difference": round(ratio - reported, 3)}
        )  # fmt: skip

    csc = {
        ("A100-40GB", "nvlink3", "infiniband-hdr", None): ("ResNet-50, TF32", (3081.61 / 4, 5862.00 / 8)),
        ("A100-40GB", "nvlink3", "infiniband-hdr", torch.float16): ("ResNet-50, float16", (4087.08 / 4, 7851.35 / 8)),
        ("V100", "nvlink2", "infiniband-hdr", None): ("ResNet-50, float32", (1249.31 / 4, 2465.86 / 8)),
        ("V100", "nvlink2", "infiniband-hdr", torch.float16): ("ResNet-50, float16", (2392.44 / 4, 4655.31 / 8)),
    }
    for (gpu, within, between, dtype), (what, (four, eight)) in csc.items():
        there, step = cluster(gpu, 4, within, between), record(*resnet50(CSC_BATCH), gpu, dtype)
        row(f"{what}, {gpu}, DDP", CSC, 4, 8, eight / four, lambda n, t=there, s=step: ddp_step(s, t, n))  # type: ignore[misc]
    mosaic: list[tuple[str, str, str, str, tuple[int, int, int, int], tuple[tuple[int, float], ...]]] = [
        ("MPT 1.3B", "H100", "nvlink4", "infiniband-ndr", (2048, 16, 24, 20), ((16, 46037), (32, 45130), (64, 44402))),
        ("MPT 13B", "H100", "nvlink4", "infiniband-ndr", (5120, 40, 40, 2), ((16, 4767), (32, 4811), (64, 4800))),
        ("MPT 2.7B", "A100-40GB", "nvlink3", "infiniband-hdr", (2560, 20, 32, 6), ((64, 9736), (128, 9538))),
    ]
    for what, gpu, within, between, (width, heads, blocks, batch), rates in mosaic:
        there = cluster(gpu, 8, within, between)
        forward, backward, parameters = block_seconds(width, heads, batch, 2048, gpu)
        few, base = rates[0]
        for many, rate in rates[1:]:
            row(
                f"{what}, {gpu}, FSDP", MOSAIC, few, many, rate / base,
                lambda n, f=forward, b=backward, k=blocks, p=parameters, t=there: fsdp_step(f, b, k, 2.0 * p, t, n),  # type: ignore[misc]
            )  # fmt: skip
    return rows


CSC_BATCH = 64
"""Images of a rank: ours, the page does not say."""


def job_models() -> list[tuple[str, str, Callable[[int], float]]]:
    """The job's own model, a larger one and a language model, on H100s of eight with NDR: seconds of a step."""
    from cluster.models import resnet18

    h100 = cluster("H100", 8, "nvlink4", "infiniband-ndr")
    slow = cluster("H100", 8, "nvlink4", "ethernet-25g")
    small = record(lambda: resnet18(3, 10), lambda: torch.randn(128, 3, 32, 32), "H100", torch.bfloat16)
    large = record(*resnet50(256), "H100", torch.bfloat16)
    forward, backward, parameters = block_seconds(4096, 32, 4, 2048, "H100")
    return [
        ("ResNet-18, batch 128 (the job)", "DDP, InfiniBand NDR", lambda n: ddp_step(small, h100, n)),
        ("ResNet-18, batch 128 (the job)", "DDP, 25 Gbit/s Ethernet", lambda n: ddp_step(small, slow, n)),
        ("ResNet-50, batch 256", "DDP, InfiniBand NDR", lambda n: ddp_step(large, h100, n)),
        ("7B, 4 x 2048 tokens", "FSDP, InfiniBand NDR",
         lambda n: fsdp_step(forward, backward, 32, 2.0 * parameters, h100, n)),
    ]  # fmt: skip


def scaling(models: Sequence[tuple[str, str, Callable[[int], float]]]) -> list[dict[str, Any]]:
    """Milliseconds of a step, and throughput per GPU over that of one node."""
    return [
        {
            "model": model,
            "how": how,
            "milliseconds": {str(n): round(1e3 * seconds(n), 3) for n in RANKS},
            "efficiency": {str(n): round(seconds(RANKS[0]) / seconds(n), 3) for n in RANKS},
        }
        for model, how, seconds in models
    ]


def main() -> Path:
    """Both tables; the path of the results."""
    return save("job_scaling", {"published": published(), "scaling": scaling(job_models())})
