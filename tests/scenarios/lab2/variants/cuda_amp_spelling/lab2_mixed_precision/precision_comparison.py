"""One loop per precision written out, CUDA events around each step, a dictionary of dictionaries, pyplot."""

import pathlib
import statistics
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn as nn

from labkit import program
from labkit.device import is_simulated, open_device
from labkit.results import PrecisionConclusions, PrecisionResult, save_json

from . import workloads
from .amp_training import evaluate, train_with_amp

RESULTS = pathlib.Path(__file__).parent / "results"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

ALL = tuple(DTYPES.values())


def measure_accuracies(create_model, train_loader, test_loader, *, device="cuda", dtypes=ALL, epochs=10):
    out = {}
    for dtype in dtypes:
        net = create_model().to(device)
        train_with_amp(net, train_loader, epochs=epochs, dtype=dtype)
        out[str(dtype).split(".")[-1]] = evaluate(net, test_loader, dtype=dtype)
        del net
    return out


class Timer:
    """CUDA events where there is CUDA, the clock elsewhere."""

    def __init__(self, device):
        self.cuda = torch.device(device).type == "cuda"

    def __enter__(self):
        if self.cuda:
            self.a, self.b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            self.a.record()
        else:
            self.t = time.monotonic()
        return self

    def __exit__(self, *_):
        if self.cuda:
            self.b.record()
            torch.cuda.synchronize()
            self.seconds = self.a.elapsed_time(self.b) / 1000
        else:
            self.seconds = time.monotonic() - self.t


def compare_precisions(
    accuracies,
    create_model=workloads.large_model,
    create_batch=workloads.large_batch,
    *,
    device="cuda",
    steps=10,
    warmup=3,
):
    if steps < 1 or warmup < 0 or any(name not in DTYPES for name in accuracies):
        raise ValueError("bad arguments")
    return [
        _one(name, accuracy, create_model, create_batch, device, steps, warmup) for name, accuracy in accuracies.items()
    ]


def _one(name, accuracy, create_model, create_batch, device, steps, warmup):
    on_cuda = torch.device(device).type == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    net = create_model().to(device)
    opt = torch.optim.Adam(net.parameters())
    loss_fn = nn.CrossEntropyLoss()
    x, y = create_batch()
    x, y = x.to(device), y.to(device)
    scaler = torch.amp.GradScaler(device)
    times = []
    for i in range(warmup + steps):
        with Timer(device) as timer:
            opt.zero_grad(set_to_none=True)
            if name == "float32":
                loss_fn(net(x), y).backward()
                opt.step()
            elif name == "bfloat16":
                with torch.autocast(device, torch.bfloat16):
                    loss = loss_fn(net(x), y)
                loss.backward()
                opt.step()
            else:
                with torch.autocast(device, torch.float16):
                    loss = loss_fn(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
        if i >= warmup:
            times.append(timer.seconds)
    t = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() if on_cuda else None
    return PrecisionResult(
        device=device, dtype=name, step_seconds=t, samples_per_second=len(x) / t, peak_bytes=peak, accuracy=accuracy
    )


def conclude(results, *, accuracy_loss=0.01):
    table = {}
    for r in results:
        if r.dtype in table:
            raise ValueError("twice")
        table[r.dtype] = r
    if "float32" not in table:
        raise ValueError("float32 is missing")
    ref = table["float32"]
    speed, memory, accuracy = {}, {}, {}
    for name, r in table.items():
        speed[name] = ref.step_seconds / r.step_seconds
        accuracy[name] = r.accuracy - ref.accuracy
        if all(other.peak_bytes is not None for other in results):
            memory[name] = r.peak_bytes / ref.peak_bytes
    allowed = {name: table[name].step_seconds for name in table if accuracy[name] >= -accuracy_loss}
    best = min(allowed.values())
    choice = None
    for name in ("bfloat16", "float16", "float32"):
        if choice is None and name in allowed and allowed[name] <= 1.05 * best:
            choice = name
    fastest = max(speed, key=speed.get)
    return PrecisionConclusions(
        speedups=speed,
        memory_ratios=memory,
        accuracy_differences=accuracy,
        fastest=fastest,
        recommended=choice,
        needs_loss_scaling=choice == "float16",
    )


def plot_precisions(results, path):
    fig, axes = plt.subplots(1, 3, figsize=(11, 4))
    names = [r.dtype for r in results]
    base = next(r for r in results if r.dtype == "float32")
    for ax, key in zip(axes, ("step_seconds", "peak_bytes", "accuracy"), strict=False):
        shares = [(getattr(r, key) or 0) / (getattr(base, key) or 1) for r in results]
        ax.bar(names, [1 / share for share in shares] if key == "step_seconds" else shares)
        ax.set_title(key)
    if is_simulated():
        fig.text(0, 0, "simulated times and bytes")
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=80)
    plt.close(fig)
    return path


def main(argv=None):
    parser = program.make_parser("compare", results=RESULTS)
    workloads.add_training_options(parser)
    for name, default in (("layers", workloads.LAYERS), ("width", workloads.WIDTH), ("batch", 32), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args(argv)
    train, test = workloads.batches(o.data, data_dir=o.data_dir)
    with open_device(o.device) as device:
        accuracies = measure_accuracies(
            lambda: workloads.classifier(workloads.pixels(train)),
            train,
            test,
            device=device.torch_device,
            dtypes=[DTYPES[name] for name in o.precisions],
            epochs=o.epochs,
        )
    with open_device(o.device, values=False) as device:
        results = compare_precisions(
            accuracies,
            lambda: workloads.large_model(layers=o.layers, width=o.width),
            lambda: workloads.large_batch(o.batch, width=o.width),
            device=device.torch_device,
            steps=o.steps,
        )
        print(conclude(results))
        program.print_written(
            save_json(o.out / "precisions.json", results, device.provenance()),
            plot_precisions(results, o.out / "precisions.png"),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
