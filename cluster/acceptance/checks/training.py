"""ResNet-18 on real images under DDP: the loss falls, all replicas end up the same, nobody is slower than the rest."""

import copy
import hashlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

from cluster.acceptance.checks import REMEDY_NO_GPU, broken
from cluster.acceptance.checks.compute import by_model, outlier_limit, outlying
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.records import Record, against_good, percentile
from cluster.acceptance.verdict import Check, Status, Threshold, compared, graded
from cluster.models import resnet18
from labkit import data

LEARNING_RATE = 0.01
WARM_UP = 2
"""Steps that count neither for throughput nor for stragglers: libraries choose their kernels in them."""
FEWEST_STEPS = 12
"""Of an epoch: in fewer no loss falls for sure."""
ALONE_STEPS = 5
JUDGED_STEPS = 8
"""With fewer, asked for by --steps, the loss says nothing."""
STRAGGLER = Threshold(
    value=1.25,
    unit="times the median of the other ranks",
    relation="at most",
    source="as for products: GPUs of one model vary by 22 % at most (Sinha et al. 2022, arXiv:2208.11035)",
)
ALIKE = Threshold(
    value=1.15, unit=STRAGGLER.unit, relation="at most",
    source="ours: steps depend on the host as well, and vary by some percent more than products",
)  # fmt: skip
"""Beyond it nothing passes; STRAGGLER says what fails."""
SLOWER_EPOCH = Threshold(
    value=1.2, unit="times the quick quarter of the first epoch's steps", relation="at most",
    source="ours: a warm board clocks some percent lower",
)  # fmt: skip
EPOCH_RATE = Threshold(
    value=0.6, unit="of the best epoch's images per second", relation="at least",
    source="ours: one interruption of the host costs a short epoch a third",
)  # fmt: skip
LEARNS = Threshold(
    value=0.92, unit="of the loss at the start", relation="at most",
    source="ours: an epoch of photographs takes it much further down",
)  # fmt: skip
FALLS = Threshold(
    value=0.95, unit="of the loss at the start", relation="at most", source="ours: well beyond the noise of a batch"
)


def measure(context: Context) -> dict[str, Any]:
    """Loss and seconds of every step, a hash of the parameters at the end; alone, without DDP, on one rank."""
    name, images, labels = context.kept.pop("data")
    torch.manual_seed(0)
    net = resnet18(images.shape[1], classes=10).to(context.torch_device)
    batch_size = context.options.batch_size or context.sizes.batch_size
    alone = _alone(context, net, images, labels, _batches(context, images, labels, batch_size, 0))
    model: nn.Module = net
    if context.world_size > 1:
        context.at("first contact of DDP")
        # Without buffers: batch norm's averages are each replica's own, and no rank waits before its forward pass.
        model = DistributedDataParallel(
            net, device_ids=[context.index] if context.on_gpu else None, broadcast_buffers=False
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    epochs = []
    for epoch in range(context.options.epochs):
        batches = _batches(context, images, labels, batch_size, epoch)
        used = len(batches[0])
        epochs.append(_epoch(context, model, optimizer, images, labels, batches, epoch))
    if context.has_fault("diverged"):
        with torch.no_grad():
            next(net.parameters()).view(-1)[0] += 1e-6
    peak = torch.cuda.max_memory_reserved() if context.on_gpu else None
    return {
        "data": name,
        "model": "ResNet-18",
        "batch_size": used,
        "epochs": epochs,
        "alone_seconds": alone,
        "sha256": _hash(net),
        "memory_peak_bytes": peak,
        "finite": all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters()),
    }


def _alone(context: Context, net: nn.Module, images: Tensor, labels: Tensor, batches: list[Tensor]) -> list[float]:
    """Seconds of forward and backward pass without any other rank: with DDP the backward pass waits for all of them."""
    own = copy.deepcopy(net)  # its averages of batch norm are not the training's
    seconds = []
    for step, batch in enumerate(batches[: WARM_UP + ALONE_STEPS]):
        context.at(f"forward and backward alone, step {step}")
        inputs, targets = images[batch].to(context.torch_device), labels[batch].to(context.torch_device)
        context.synchronize()
        began = time.perf_counter()
        for _ in range(SLOW_FACTOR if context.has_fault("slow") else 1):
            loss = nn.functional.cross_entropy(own(inputs), targets)
            for again in range(SLOW_FACTOR if context.has_fault("slow-backward") else 1, 0, -1):
                loss.backward(retain_graph=again > 1)
        context.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:] or seconds


def load_data(context: Context) -> dict[str, Any]:
    """Load the images before anybody waits for anybody: a rank that has none says so in time.

    Raises:
        DatasetError: the data set is not there.
    """
    options = context.options
    name = options.data
    if name == "auto":
        name = _there(options.data_dir) if context.on_gpu and not context.device.simulated else "digits"
    context.kept["data"] = (name, *data.load(name, data_dir=options.data_dir).tensors)
    return {"data": name}


def _there(data_dir: Path | None) -> str:
    root = Path(data_dir or os.environ.get(data.DATA_VARIABLE) or data.DEFAULT_DATA_DIR)
    for name in ("cifar10", "fashion-mnist"):
        if (root / data.SOURCES[name].folder).is_dir():
            return name
    return "digits"


def _batches(context: Context, images: Tensor, labels: Tensor, batch_size: int, epoch: int) -> list[Tensor]:
    """Indices of this rank's batches: of a small data set among many ranks, of several rounds through it."""
    sampler: DistributedSampler[Any] = DistributedSampler(
        TensorDataset(images, labels), num_replicas=context.world_size, rank=context.rank, drop_last=True
    )
    size = min(batch_size, len(sampler))
    batches: list[Tensor] = []
    for round_ in range(FEWEST_STEPS):
        if len(batches) >= FEWEST_STEPS:
            break
        sampler.set_epoch(FEWEST_STEPS * epoch + round_)
        batches += [batch for batch in torch.tensor(list(sampler)).split(size) if len(batch) == size]
    return batches[: context.options.steps or context.sizes.steps]


def _epoch(
    context: Context,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    batches: list[Tensor],
    epoch: int,
) -> dict[str, Any]:
    losses, own_seconds = [], []
    started = counted_from = time.perf_counter()
    for step, batch in enumerate(batches):
        if step % 50 == 0:
            context.at(f"training, epoch {epoch}, step {step}")
        if epoch == 0 and step == 1 and context.has_fault("oom"):
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")
        if epoch == 0 and step == WARM_UP:
            context.synchronize()
            counted_from = time.perf_counter()
        context.synchronize()  # the step before, and all that it waited for
        began = time.perf_counter()
        inputs = images[batch].to(context.torch_device)
        targets = labels[batch].to(context.torch_device)
        for _ in range(SLOW_FACTOR if context.has_fault("slow") else 1):
            output = model(inputs)
        loss = nn.functional.cross_entropy(output, targets)
        # Up to here no rank has waited for another.
        context.synchronize()
        own_seconds.append(time.perf_counter() - began)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() * (float("nan") if step and context.has_fault("nan") else 1.0))
    context.synchronize()
    ended = time.perf_counter()
    counted = len(batches) - (WARM_UP if epoch == 0 and len(batches) > WARM_UP else 0)
    if counted == len(batches):
        counted_from = started
    return {
        "losses": [float(loss) for loss in losses],
        "own_seconds": own_seconds,
        "images_per_second": counted * len(batches[0]) / (ended - counted_from),
    }


def _hash(net: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in net.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def mean_losses(records: Sequence[Record]) -> list[float]:
    """The loss of every step, over all ranks."""
    per_rank = [
        [loss for epoch in record.result("training")["epochs"] for loss in epoch["losses"]]
        for record in records
        if record.measured("training")
    ]
    return [mean(losses) for losses in zip(*per_rank, strict=True)] if per_rank else []


def throughput(record: Record) -> float:
    """Images per second of one rank, of its best epoch."""
    return float(max(epoch["images_per_second"] for epoch in record.result("training")["epochs"]))


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """Checks of the training."""
    checks = broken(records, "data", "training") + broken(records, "training", "training")
    there = [record for record in records if record.measured("training")]
    if not there:
        return checks
    checks += [_numbers(record) for record in there]
    checks.append(_loss(there))
    checks += [check for record in there if record.gpu is not None for check in _epochs(record)]
    checks += _replicas(there)
    file = expected.threshold("training", "images_per_second", "images/s", "at least") if expected is not None else None
    checks += [_rate(record, file) for record in there if file is not None]
    for same in by_model(there).values():
        checks += _pace(same, "pace", [median(_own_seconds(record)) for record in same])
        both = [record for record in same if record.result("training").get("alone_seconds")]
        alone = [median(record.result("training")["alone_seconds"]) for record in both]
        checks += _pace(both, "pace of forward and backward", alone)
    return checks


def _rate(record: Record, limit: Threshold) -> Check:
    """Nobody has published it for this model, so only the file says what it should be."""
    rate = throughput(record)
    return Check(
        name="expected: images per second",
        part="training",
        subject=record.subject,
        rank=record.rank,
        status=compared(rate, limit),
        evidence=f"{rate:.0f} images/s",
        remedy="if products and pace are right: the host (clocks, NUMA placement, other programs), the data's storage",
        measured=rate,
        threshold=limit,
    )


def _pace(records: Sequence[Record], name: str, own: Sequence[float]) -> list[Check]:
    checks = []
    for record, seconds, ratio, far in zip(records, own, against_good(own), outlying(own), strict=True):
        on_gpu = record.gpu is not None
        status, limit = graded(ratio, outlier_limit(STRAGGLER, far), ALIKE)
        shown = f"{throughput(record):.0f} images/s, {seconds * 1e3:.2f} ms a step without the others"
        if ratio is not None:
            shown += f", {ratio:.2f} times the median of its peers"
        checks.append(
            Check(
                name=f"training: {name}",
                part="training",
                subject=record.subject,
                rank=record.rank,
                status=status if on_gpu else "unverified",
                evidence=shown if on_gpu else f"{shown}; not judged: not a GPU",
                remedy="a straggler slows all others down: look at its clocks and temperature, and at its node's load"
                if on_gpu
                else REMEDY_NO_GPU,
                measured=ratio,
                threshold=limit,
            )
        )
    return checks


def _epochs(record: Record) -> list[Check]:
    """What slows down from epoch to epoch, on all alike: heat, a host that runs out of memory, a file system."""
    epochs = record.result("training")["epochs"]
    if len(epochs) < 2:
        return []
    quick = [percentile(epoch["own_seconds"], 25) for epoch in epochs]
    # The first steps choose kernels; an epoch of few is hardly more than them.
    slower = quick[-1] / quick[0]
    rates = [epoch["images_per_second"] for epoch in epochs]
    rate = min(rates[1:]) / max(rates)
    holds = SLOWER_EPOCH.holds(slower) and EPOCH_RATE.holds(rate)
    by_rate = SLOWER_EPOCH.holds(slower) and not holds
    return [
        Check(
            name="training: pace from epoch to epoch",
            part="training",
            subject=record.subject,
            rank=record.rank,
            status="pass" if holds else "unverified",
            evidence=f"{', '.join(f'{own:.0f}' for own in rates)} images/s; the quick quarter of the last epoch's "
            f"steps takes {slower:.2f} times that of the first",
            remedy="it slows down as it runs: heat (--thorough), the host's memory and clocks, the data's file system",
            measured=rate if by_rate else slower,
            threshold=EPOCH_RATE if by_rate else SLOWER_EPOCH,
        )
    ]


def _own_seconds(record: Record) -> list[float]:
    seconds = [step for epoch in record.result("training")["epochs"] for step in epoch["own_seconds"]]
    return seconds[WARM_UP:] or seconds


def _numbers(record: Record) -> Check:
    losses = [loss for epoch in record.result("training")["epochs"] for loss in epoch["losses"]]
    wrong = [step for step, loss in enumerate(losses, start=1) if not isfinite(loss)]
    return Check(
        name="training: losses are numbers",
        part="training",
        subject=record.subject,
        rank=record.rank,
        status="fail" if wrong else "pass",
        evidence=f"step {wrong[0]} of {len(losses)} is the first that is none" if wrong else f"all {len(losses)}",
        remedy="this rank computed NaN or infinity: run compute on it alone; look at its ECC errors",
    )


def _loss(records: Sequence[Record]) -> Check:
    losses, result = mean_losses(records), records[0].result("training")
    quarter = max(1, len(losses) // 4)
    first, last = mean(losses[:quarter]), mean(losses[-quarter:])
    by_epoch = [mean(loss for record in records for loss in record.result("training")["epochs"][epoch]["losses"])
                for epoch in range(len(result["epochs"]))]  # fmt: skip
    finite = all(record.result("training")["finite"] for record in records)
    ratio = last / first
    real = all(record.gpu is not None and record.result("presence").get("nccl") for record in records)
    status: Status = "unverified" if len(losses) < JUDGED_STEPS else compared(ratio, FALLS)
    if real and status == "pass" and not LEARNS.holds(ratio):
        status = "unverified"
    return Check(
        name="training: loss falls",
        part="training",
        subject="all ranks",
        status=status if finite else "fail",
        evidence=f"{result['model']} on {result['data']}, {len(losses)} steps of {result['batch_size']} images a rank: "
        f"{first:.3f} to {last:.3f}; by epoch {', '.join(f'{loss:.3f}' for loss in by_epoch)}"
        + ("" if finite else "; parameters are no longer finite"),
        remedy="if products and collectives are right: more --epochs or another --batch-size; else fix those first",
        measured=ratio,
        threshold=FALLS,
        nothing_known=len(losses) < JUDGED_STEPS,
    )


def _replicas(records: Sequence[Record]) -> list[Check]:
    """Every rank whose parameters are not those of the majority is named; where there is none, all are."""
    hashes = [record.result("training")["sha256"] for record in records]
    counts = Counter(hashes).most_common()
    right = counts[0][0] if len(counts) < 2 or counts[0][1] > counts[1][1] else None
    odd = [record for record, own in zip(records, hashes, strict=True) if own != right]
    if len(records) == 1:
        return [_replica("skipped", "all ranks", "one replica, nothing to compare")]
    if not odd:
        evidence = f"{len(records)} replicas, SHA-256 of all parameters {hashes[0][:16]}..."
        return [_replica("pass", "all ranks", evidence, different=1)]
    return [
        _replica(
            "fail",
            record.subject,
            f"its parameters ({record.result('training')['sha256'][:16]}...) are not the others'"
            + (f" ({right[:16]}...)" if right else ", and no value has a majority: any of them may be the wrong one"),
            rank=record.rank,
            different=len(set(hashes)),
        )
        for record in odd
    ]


def _replica(
    status: Status, subject: str, evidence: str, *, rank: int | None = None, different: int | None = None
) -> Check:
    return Check(
        name="training: replicas are equal",
        part="training",
        subject=subject,
        rank=rank,
        status=status,
        evidence=evidence,
        remedy="gradients did not arrive everywhere alike: look at the collectives' results and at this GPU's products",
        measured=different,
        threshold=Threshold(value=1, unit="different SHA-256", relation="at most", source="DDP keeps replicas equal"),
    )
