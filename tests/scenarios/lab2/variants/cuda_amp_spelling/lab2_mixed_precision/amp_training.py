"""The hand-out's spelling, torch.cuda.amp, with one branch per precision; sums that are divided before the step."""

import time
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch.cuda.amp import GradScaler, autocast
from torch.nn import functional

from labkit import program
from labkit.device import is_simulated, open_device
from labkit.results import AmpTraining, save_json

from . import workloads

warnings.filterwarnings("ignore", category=FutureWarning, message=".*torch.cuda.amp.*")
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Batches = list
RESULTS = __file__.rsplit("/", 1)[0] + "/results"


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
    if dtype not in PRECISIONS.values():
        raise ValueError(f"unknown dtype {dtype}")
    if epochs < 1 or accumulation_steps < 1:
        raise ValueError("epochs and accumulation_steps must be positive")
    if device is None:
        device = next(iter(model.parameters())).device
    model = model.to(device)
    model.train()
    if optimizer is None:
        optimizer = torch.optim.Adam(model.parameters())
    if criterion is None:
        criterion = functional.cross_entropy
    if dtype is torch.float16 and scaler is None:
        scaler = GradScaler()

    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    begin = time.time()
    history = []
    steps = skipped = 0
    for _epoch in range(epochs):
        epoch_loss = epoch_count = 0
        pending_loss = pending_count = 0
        batches = list(train_loader)
        for number, (x, y) in enumerate(batches, start=1):
            x = x.to(device)
            y = y.to(device)
            n = x.shape[0]
            if dtype is torch.float32:
                loss = criterion(model(x), y) * n
                loss.backward()
            elif dtype is torch.bfloat16:
                with autocast(dtype=torch.bfloat16):
                    loss = criterion(model(x), y) * n
                loss.backward()
            else:
                with autocast():
                    loss = criterion(model(x), y) * n
                scaler.scale(loss).backward()
            pending_loss += float(loss)
            pending_count += n
            if number % accumulation_steps != 0 and number != len(batches):
                continue
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(1.0 / pending_count)
            if dtype is torch.float16:
                scaler.unscale_(optimizer)
            if max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_grad_norm)
            if dtype is torch.float16:
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                stepped = scaler.get_scale() >= before
            else:
                optimizer.step()
                stepped = True
            optimizer.zero_grad()
            if stepped:
                steps += 1
                epoch_loss += pending_loss
                epoch_count += pending_count
                if scheduler is not None:
                    scheduler.step()
            else:
                skipped += 1
            pending_loss = pending_count = 0
        history.append(epoch_loss / epoch_count if epoch_count else None)
    torch.cuda.synchronize()
    return AmpTraining(
        device=torch.device(device).type,
        dtype=str(dtype)[6:],
        losses=tuple(history),
        optimizer_steps=steps,
        skipped_steps=skipped,
        final_scale=scaler.get_scale() if dtype is torch.float16 else None,
        seconds=time.time() - begin,
        peak_bytes=torch.cuda.max_memory_allocated() if torch.device(device).type == "cuda" else None,
    )


@torch.no_grad()
def evaluate(model, loader, *, device=None, dtype=torch.float32):
    if device is None:
        device = next(iter(model.parameters())).device
    asleep = [m for m in model.modules() if not m.training]
    model = model.to(device)
    model.eval()
    hits = []
    for x, y in loader:
        with autocast(enabled=dtype != torch.float32, dtype=dtype if dtype != torch.float32 else torch.float16):
            out = model(x.to(device))
        hits += (out.argmax(1).cpu() == y).tolist()
    model.train()
    for m in asleep:
        m.training = False
    if not hits:
        raise ValueError("no samples")
    return sum(hits) / len(hits)


def plot_losses(trainings, path):
    path = workloads_path(path)
    fig, ax = plt.subplots(figsize=(8, 5))
    for t in trainings:
        ax.plot(range(1, len(t.losses) + 1), t.losses, marker="o", label=t.dtype)
    ax.set_title("losses" + (" (simulated GPU)" if is_simulated() else ""))
    ax.legend()
    fig.savefig(path)
    plt.close(fig)
    return path


def workloads_path(path):
    import pathlib

    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main(argv=None):
    import pathlib

    parser = program.make_parser("train", results=pathlib.Path(RESULTS))
    workloads.add_training_options(parser)
    options = parser.parse_args(argv)
    train, test = workloads.batches(options.data, data_dir=options.data_dir)
    with open_device(options.device) as device:
        trainings = []
        for name in options.precisions:
            dtype = PRECISIONS[name]
            model = workloads.classifier(workloads.pixels(train))
            trainings.append(train_with_amp(model, train, options.epochs, device=device.torch_device, dtype=dtype))
            print(name, evaluate(model, test, device=device.torch_device, dtype=dtype))
        program.print_written(
            save_json(options.out / "training.json", trainings, device.provenance()),
            plot_losses(trainings, options.out / "training.png"),
        )
    return 0


if __name__ == "__main__":
    program.run(main)
