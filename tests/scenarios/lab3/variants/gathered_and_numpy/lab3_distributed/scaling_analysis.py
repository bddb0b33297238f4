"""Scaling with CUDA events, NumPy, and ranks that tell each other their figures in one tensor."""

import argparse
import functools
import itertools
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import plotting
from labkit.device import open_device
from labkit.results import ScalingPoint, StepProfile, save_json

from .ddp_training import cleanup, setup
from .ranks import run_ranks

WIDTH = 2048


def idle():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_rank(
    rank,
    world_size,
    init_method=None,
    *,
    kind="strong",
    batch_size=256,
    device=None,
    model=None,
    batches=None,
    steps=5,
    warmup=2,
):
    if kind == "strong":
        share, remainder = divmod(batch_size, world_size)
        if remainder:
            raise ValueError("cannot be shared")
    elif kind == "weak":
        share = batch_size
    else:
        raise ValueError(kind)
    place = setup(rank, world_size, init_method=init_method, device=device)
    try:
        if model is None:
            model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)])
        if batches is None:
            batches = itertools.repeat((torch.rand(share, WIDTH), torch.rand(share, WIDTH)))
        model = model.to(place)
        ddp = DistributedDataParallel(model)
        sgd = torch.optim.SGD(model.parameters(), 1e-3)

        def clock(network):
            marks = np.zeros((warmup + steps, 3))
            for row in marks:
                idle()
                row[0] = time.perf_counter()
                x, y = next(batches)
                x, y = x.to(place), y.to(place)
                idle()
                row[1] = time.perf_counter()
                loss = (network(x) - y).pow(2).mean()
                sgd.zero_grad(set_to_none=True)
                loss.backward()
                sgd.step()
                idle()
                row[2] = time.perf_counter()
            return np.diff(marks[warmup:], axis=1)

        whole = float(np.median(clock(ddp).sum(axis=1)))
        data, compute = np.median(clock(model), axis=0)  # the module alone exchanges nothing
        told = [None] * world_size
        dist.all_gather_object(told, [whole, float(data), float(compute)])
        table = np.array(told)
        backend = dist.get_backend()
        del ddp
    finally:
        cleanup()
    rest = np.maximum(table[:, 0] - table[:, 1] - table[:, 2], 0)
    seconds = float(table[:, 0].max())
    return ScalingPoint(
        device=place.type,
        backend=backend,
        kind=kind,
        world_size=world_size,
        batch_size=share * world_size,
        step_seconds=seconds,
        samples_per_second=share * world_size / seconds,
        profile=StepProfile(
            data_seconds=tuple(table[:, 1].tolist()),
            compute_seconds=tuple(table[:, 2].tolist()),
            communication_seconds=tuple(rest.tolist()),
        ),
    )


def measure_scaling(
    world_sizes=(1, 2, 4), *, kind="strong", batch_size=256, device=None, steps=5, start_method="spawn"
):
    points = []
    for n in world_sizes:
        job = functools.partial(measure_rank, kind=kind, batch_size=batch_size, device=device, steps=steps)
        points.append(run_ranks(job, n, start_method=start_method)[-1])
    return points


def speedup(points, kind="strong"):
    seconds = {p.world_size: p.step_seconds for p in points if p.kind == kind}
    try:
        alone = seconds[1]
    except KeyError:
        raise ValueError("measure one process, too") from None
    return {n: (n if kind == "weak" else 1) * alone / t for n, t in seconds.items()}


def efficiency(points, kind="strong"):
    ratios = speedup(points, kind)
    return dict(zip(ratios, np.array(list(ratios.values())) / np.array(list(ratios)), strict=True))


def split_step(profile):
    data, compute, rest = (
        np.array(x) for x in (profile.data_seconds, profile.compute_seconds, profile.communication_seconds)
    )
    work = data + compute
    return {
        "communication": rest.min(),
        "data": data.mean(),
        "imbalance": work.max() - work.mean(),
        "compute": compute.mean(),
    }


def communication_share(profile):
    parts = np.array(list(split_step(profile).values()))
    return parts[0] / parts.sum()


def name_bottleneck(profile, *, threshold=0.2):
    parts = split_step(profile)
    names = ["communication", "data", "imbalance"]
    shares = np.array([parts[name] for name in names]) / sum(parts.values())
    return names[int(shares.argmax())] if shares.max() >= threshold else "compute"


def plot_scaling(points, path):
    kinds = sorted({point.kind for point in points})
    figure, axes = plotting.new_figure("Scaling", columns=len(kinds), x_label="ranks", y_label="speedup")
    for axis, kind in zip(axes, kinds, strict=True):
        ratios = dict(sorted(speedup(points, kind).items()))
        axis.bar([str(n) for n in ratios], list(ratios.values()), color=plotting.COLORS[1])
        axis.plot([str(n) for n in ratios], list(ratios), "k_", markersize=20, label="perfect")
        axis.set_title(kind)
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--world-sizes", default="1,2,4")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(argv)
    sizes = [int(n) for n in options.world_sizes.split(",")]
    with open_device(options.device, values=False, gpus=max(sizes)) as device:
        start = "fork" if device.simulated else "spawn"
        points = [
            point
            for kind in ("strong", "weak")
            for point in measure_scaling(
                sizes,
                kind=kind,
                batch_size=options.batch_size,
                device=device.torch_device,
                steps=options.steps,
                start_method=start,
            )
        ]
        save_json(options.out / "scaling.json", points, device.provenance())
        plot_scaling(points, options.out / "bars.png")
