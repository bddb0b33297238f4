"""torch.utils.benchmark around one step; a class that keeps everything of a precision and goes out of scope."""

import gc
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import PrecisionConclusions, PrecisionResult, save_json

from . import workloads
from .amp_training import evaluate, train_with_amp
from .readings import PRECISIONS


def measure_accuracies(
    create_model,
    train_loader,
    test_loader,
    *,
    device="cuda",
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    epochs=10,
):
    def accuracy(dtype):
        model = create_model()
        train_with_amp(model, train_loader, epochs, device=device, dtype=dtype)
        return evaluate(model, test_loader, device=device, dtype=dtype)

    return {str(dtype)[6:]: accuracy(dtype) for dtype in dtypes}


class Step:
    def __init__(self, model, batch, device, name):
        self.kind = torch.device(device).type
        self.dtype = PRECISIONS[name]
        self.model = model.to(device)
        self.inputs, self.targets = batch[0].to(device), batch[1].to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scaler = torch.amp.GradScaler(self.kind) if name == "float16" else None

    def loss(self):
        return torch.nn.functional.cross_entropy(self.model(self.inputs), self.targets)

    def __call__(self):
        self.optimizer.zero_grad(set_to_none=True)
        if self.dtype == torch.float32:
            loss = self.loss()
        else:
            with torch.autocast(self.kind, self.dtype):
                loss = self.loss()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def compare_precisions(
    accuracies,
    create_model=workloads.large_model,
    create_batch=workloads.large_batch,
    *,
    device="cuda",
    steps=10,
    warmup=3,
):
    unknown = set(accuracies) - set(PRECISIONS)
    if unknown:
        raise ValueError(f"unknown precisions: {unknown}")
    if steps < 1 or warmup < 0:
        raise ValueError("steps from 1 on, warmup from 0 on")
    on_gpu = torch.device(device).type == "cuda"
    rows = []
    for name in accuracies:
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step = Step(create_model(), create_batch(), device, name)
        for _ in range(warmup):
            step()
        # One run each; the timer itself waits for the device before and after.
        took = sorted(Timer("step()", globals={"step": step}).timeit(1).median for _ in range(steps))
        median = (took[(steps - 1) // 2] + took[steps // 2]) / 2
        rows.append(
            PrecisionResult(
                device=step.kind,
                dtype=name,
                step_seconds=median,
                samples_per_second=step.inputs.size(0) / median,
                peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
                accuracy=accuracies[name],
            )
        )
        del step
    return rows


def conclude(results, *, accuracy_loss=0.01):
    names = [row.dtype for row in results]
    if names.count("float32") != 1 or len(set(names)) < len(names):
        raise ValueError("one float32, and nothing twice")
    table = dict(zip(names, results, strict=False))
    base = table["float32"]
    peaks_known = all(row.peak_bytes is not None for row in results)
    candidates = [n for n in names if table[n].accuracy - base.accuracy >= -accuracy_loss]
    quickest = min(table[n].step_seconds for n in candidates)
    candidates = [n for n in candidates if table[n].step_seconds <= 1.05 * quickest]
    recommended = sorted(candidates, key=["bfloat16", "float16", "float32"].index)[0]
    return PrecisionConclusions(
        speedups={n: base.step_seconds / table[n].step_seconds for n in names},
        memory_ratios={n: table[n].peak_bytes / base.peak_bytes for n in names} if peaks_known else {},
        accuracy_differences={n: table[n].accuracy - base.accuracy for n in names},
        fastest=min(results, key=lambda row: row.step_seconds).dtype,
        recommended=recommended,
        needs_loss_scaling=recommended == "float16",
    )


def plot_precisions(results, path):
    figure, axes = plotting.new_figure("Seconds, bytes, accuracy", columns=3)
    names = [row.dtype for row in results]
    base = results[names.index("float32")]
    axes[0].bar(names, [base.step_seconds / row.step_seconds for row in results])
    axes[1].bar(names, [(row.peak_bytes or 0) / (base.peak_bytes or 1) for row in results])
    axes[2].bar(names, [row.accuracy / base.accuracy for row in results])
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("Compare precisions", results=Path(__file__).parent / "results")
    workloads.add_training_options(parser)
    for name, default in (("layers", 12), ("width", 512), ("batch", 32), ("steps", 10)):
        parser.add_argument(f"--{name}", type=program.positive_int, default=default)
    args = parser.parse_args(argv)
    train, test = workloads.batches(args.data, data_dir=args.data_dir)
    found = {}
    with open_device(args.device) as device:
        for name in track(args.precisions, "training"):
            found.update(
                measure_accuracies(
                    lambda: workloads.classifier(workloads.pixels(train)),
                    train,
                    test,
                    device=device.torch_device,
                    dtypes=[PRECISIONS[name]],
                    epochs=args.epochs,
                )
            )
    with open_device(args.device, values=False) as device:
        rows = compare_precisions(
            found,
            lambda: workloads.large_model(layers=args.layers, width=args.width),
            lambda: workloads.large_batch(args.batch, width=args.width),
            device=device.torch_device,
            steps=args.steps,
        )
        print(conclude(rows))
        written = save_json(args.out / "precisions.json", rows, device.provenance())
        program.print_written(written, plot_precisions(rows, args.out / "precisions.png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
