"""A benchmark object per precision; NumPy arrays for the conclusions."""

import gc
import pathlib
import time

import numpy as np
import torch
from torch import nn

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import PrecisionConclusions, PrecisionResult, save_json

from . import workloads
from .amp_training import PRECISIONS, evaluate, train_with_amp

ALL = tuple(PRECISIONS.values())


def measure_accuracies(create_model, train_loader, test_loader, *, device="cuda", dtypes=ALL, epochs=10):
    names = {dtype: name for name, dtype in PRECISIONS.items()}

    def accuracy(dtype):
        model = create_model()
        train_with_amp(model, train_loader, epochs, device=device, dtype=dtype)
        return float(evaluate(model, test_loader, device=device, dtype=dtype))

    return {names[dtype]: accuracy(dtype) for dtype in dtypes}


class Benchmark:
    def __init__(self, name, model, batch, device):
        self.dtype = PRECISIONS[name]
        self.device = torch.device(device)
        self.inputs, self.targets = (part.to(self.device) for part in batch)
        self.model = model.to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loss = nn.CrossEntropyLoss()
        self.scaler = torch.amp.GradScaler(self.device.type) if name == "float16" else None

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not torch.float32):
            loss = self.loss(self.model(self.inputs), self.targets)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def wait(self):
        if self.device.type == "cuda":
            torch.accelerator.synchronize()

    def measure(self, steps):
        laps = []
        for _ in range(steps):
            self.wait()
            start = time.perf_counter_ns()
            self.step()
            self.wait()
            laps.append(time.perf_counter_ns() - start)
        return float(np.median(laps)) * 1e-9


def compare_precisions(
    accuracies,
    create_model=workloads.large_model,
    create_batch=workloads.large_batch,
    *,
    device="cuda",
    steps=10,
    warmup=3,
):
    if steps < 1 or warmup < 0 or not set(accuracies) <= set(PRECISIONS):
        raise ValueError("see the docstring")
    rows = []
    for name in accuracies:
        benchmark = Benchmark(name, create_model(), create_batch(), device)
        for _ in range(warmup):
            benchmark.step()
        if benchmark.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()  # the steps are alike, so this peak is that of the warm-up as well
        seconds = benchmark.measure(steps)
        rows.append(
            PrecisionResult(
                device=benchmark.device.type,
                dtype=name,
                step_seconds=seconds,
                samples_per_second=benchmark.inputs.shape[0] / seconds,
                peak_bytes=torch.cuda.max_memory_allocated() if benchmark.device.type == "cuda" else None,
                accuracy=accuracies[name],
            )
        )
        del benchmark
        gc.collect()
    return rows


def conclude(results, *, accuracy_loss=0.01):
    names = [row.dtype for row in results]
    if names.count("float32") != 1 or len(set(names)) != len(names):
        raise ValueError("float32 once, nothing twice")
    base = names.index("float32")
    took = np.array([row.step_seconds for row in results])
    accuracy = np.array([row.accuracy for row in results])
    loss = accuracy - accuracy[base]
    peaks = [row.peak_bytes for row in results]
    ratios = {} if None in peaks else dict(zip(names, np.array(peaks) / peaks[base], strict=False))
    considered = np.where(loss >= -accuracy_loss, took, np.inf)
    good = considered <= 1.05 * considered.min()
    rank = {"bfloat16": 0, "float16": 1, "float32": 2}
    recommended = min((name for name, fine in zip(names, good, strict=False) if fine), key=rank.__getitem__)
    return PrecisionConclusions(
        speedups=dict(zip(names, took[base] / took, strict=False)),
        memory_ratios=ratios,
        accuracy_differences=dict(zip(names, loss, strict=False)),
        fastest=names[int(took.argmin())],
        recommended=recommended,
        needs_loss_scaling=recommended == "float16",
    )


def plot_precisions(results, path):
    figure, (axis,) = plotting.new_figure("percent of float32: speed, memory, accuracy")
    names = [row.dtype for row in results]
    table = np.array([(1 / row.step_seconds, row.peak_bytes or np.nan, row.accuracy) for row in results])
    axis.plot(names, 100 * table / table[names.index("float32")], "o")
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("compare", results=pathlib.Path(__file__).parent / "results")
    workloads.add_training_options(parser)
    for name, value in {"layers": workloads.LAYERS, "width": workloads.WIDTH, "batch": 32, "steps": 10}.items():
        parser.add_argument(f"--{name}", default=value, type=program.positive_int)
    options = parser.parse_args(argv)
    train, test = workloads.batches(options.data, data_dir=options.data_dir)
    with open_device(options.device) as device:
        create = workloads.classifier
        accuracies = measure_accuracies(
            create,
            train,
            test,
            device=device.torch_device,
            dtypes=[PRECISIONS[name] for name in options.precisions],
            epochs=options.epochs,
        )
    with open_device(options.device, values=False) as device:
        rows = compare_precisions(
            accuracies,
            lambda: workloads.large_model(layers=options.layers, width=options.width),
            lambda: workloads.large_batch(options.batch, width=options.width),
            device=device.torch_device,
            steps=options.steps,
        )
        print(conclude(rows))
        path = save_json(options.out / "precisions.json", rows, device.provenance())
        program.print_written(path, plot_precisions(rows, options.out / "precisions.png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
