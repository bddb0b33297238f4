"""One context and one scaler that may be switched off, as in many public training loops; a loader with a look ahead."""

import time
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional

from labkit import plotting, program
from labkit.device import open_device
from labkit.progress import track
from labkit.results import AmpTraining, save_json

from . import workloads

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Batches = list


def with_last(iterable):
    """Pairs (item, whether it is the last)."""
    iterator = iter(iterable)
    try:
        item = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        yield item, False
        item = following
    yield item, True


def train_with_amp(
    model,
    train_loader,
    epochs=10,
    *,
    device=None,
    dtype=torch.float16,
    optimizer=None,
    criterion=None,
    scheduler=None,
    scaler=None,
    max_grad_norm=None,
    accumulation_steps=1,
):
    assert_valid(dtype, epochs, accumulation_steps)
    where = torch.device(device) if device is not None else next(model.parameters()).device
    model.train()
    model.to(where)
    optimizer = torch.optim.Adam(model.parameters()) if optimizer is None else optimizer
    criterion = functional.cross_entropy if criterion is None else criterion
    use_scaler = dtype == torch.float16
    scaler = scaler if use_scaler and scaler is not None else torch.amp.GradScaler(where.type, enabled=use_scaler)
    amp = partial(torch.autocast, device_type=where.type, dtype=dtype, enabled=dtype != torch.float32)

    cuda = where.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(where)
        torch.cuda.synchronize(where)
    t0 = time.perf_counter()
    curve, taken, skipped = [], 0, 0
    for _ in range(epochs):
        total = torch.zeros((), dtype=torch.float64, device=where)
        seen = 0
        waiting = []
        for batch, last in with_last(train_loader):
            waiting.append(batch)
            if len(waiting) < accumulation_steps and not last:
                continue
            samples = sum(y.shape[0] for _, y in waiting)
            window_total = torch.zeros_like(total)
            for x, y in waiting:
                x = x.to(where, non_blocking=True)
                y = y.to(where, non_blocking=True)
                with amp():
                    logits = model(x)
                    loss = criterion(logits, y)
                scaler.scale(loss * (y.shape[0] / samples)).backward()
                window_total += loss.detach() * y.shape[0]
            waiting = []
            if max_grad_norm:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm, foreach=True)
            scale_before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if use_scaler and scaler.get_scale() < scale_before:
                skipped += 1
                continue
            taken += 1
            total += window_total
            seen += samples
            if scheduler:
                scheduler.step()
        curve.append(total.item() / seen if seen else None)
    if cuda:
        torch.cuda.synchronize(where)
    return AmpTraining(
        device=where.type,
        dtype={value: key for key, value in PRECISIONS.items()}[dtype],
        losses=tuple(curve),
        optimizer_steps=taken,
        skipped_steps=skipped,
        final_scale=scaler.get_scale() if use_scaler else None,
        seconds=time.perf_counter() - t0,
        peak_bytes=torch.cuda.max_memory_allocated(where) if cuda else None,
    )


def assert_valid(dtype, epochs, accumulation_steps):
    if dtype not in PRECISIONS.values():
        raise ValueError(dtype)
    if epochs < 1:
        raise ValueError(epochs)
    if accumulation_steps < 1:
        raise ValueError(accumulation_steps)


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    where = torch.device(device) if device is not None else next(model.parameters()).device
    model.to(where)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    count = correct = 0
    with torch.set_grad_enabled(False):
        for x, y in loader:
            with torch.autocast(where.type, dtype, enabled=dtype != torch.float32):
                best = model(x.to(where)).max(dim=1).indices
            correct += best.eq(y.to(where)).sum().item()
            count += y.size(0)
    for module, mode in modes.items():
        module.training = mode
    if count == 0:
        raise ValueError("no samples")
    return correct / count


def plot_losses(trainings, path):
    figure, axes = plotting.new_figure("loss", columns=len(trainings), x_label="epoch", y_label="loss")
    for axis, training, color in zip(axes, trainings, plotting.COLORS, strict=False):
        axis.step(range(len(training.losses)), training.losses, color=color)
        axis.set_title(training.dtype)
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("train", results=Path(__file__).parent / "results")
    workloads.add_training_options(parser)
    options = parser.parse_args(argv)
    train, test = workloads.batches(options.data, data_dir=options.data_dir)
    rows, results = [], []
    with open_device(options.device) as device:
        for name in track(options.precisions, "precisions"):
            model = workloads.classifier(workloads.pixels(train)).to(device.torch_device)
            results.append(train_with_amp(model, train, options.epochs, dtype=PRECISIONS[name]))
            rows.append((name, evaluate(model, test, dtype=PRECISIONS[name])))
        program.print_table("accuracy", ("precision", "accuracy"), rows)
        program.print_written(
            save_json(options.out / "training.json", results, device.provenance()),
            plot_losses(results, options.out / "training.png"),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
