"""A trainer object; the optimizer's own hook tells whether a step was taken; NumPy for the means."""

from __future__ import annotations

import pathlib
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import DataLoader

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import AmpTraining, save_json

from . import workloads

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Batches = DataLoader


@dataclass
class Trainer:
    model: torch.nn.Module
    dtype: torch.dtype
    device: torch.device
    optimizer: torch.optim.Optimizer
    criterion: object
    scheduler: object
    scaler: torch.amp.GradScaler | None
    clip: float | None
    taken: list[bool] = field(default_factory=list)

    def forward(self, inputs, targets):
        if self.dtype == torch.float32:
            return self.criterion(self.model(inputs), targets)
        with torch.amp.autocast(self.device.type, self.dtype):
            return self.criterion(self.model(inputs), targets)

    def accumulate(self, window):
        sizes = np.array([len(targets) for _, targets in window])
        losses = np.zeros(len(window))
        for index, (inputs, targets) in enumerate(window):
            loss = self.forward(inputs.to(self.device), targets.to(self.device))
            part = loss * float(sizes[index] / sizes.sum())
            if self.scaler is not None:
                part = self.scaler.scale(part)
            part.backward()
            losses[index] = loss.item()
        return float(losses @ sizes), int(sizes.sum())

    def step(self):
        made = []
        handle = self.optimizer.register_step_post_hook(lambda *_: made.append(True))
        if self.scaler is None:
            self.clip_gradients()
            self.optimizer.step()
        else:
            self.scaler.unscale_(self.optimizer)
            self.clip_gradients()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        handle.remove()
        self.optimizer.zero_grad()
        self.taken.append(bool(made))
        if made and self.scheduler is not None:
            self.scheduler.step()
        return bool(made)

    def clip_gradients(self):
        if self.clip is None:
            return
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
        torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))

    def epoch(self, loader, length):
        sums = np.zeros(2)
        window = []
        for batch in loader:
            window.append(batch)
            if len(window) == length:
                sums += self.window(window)
                window = []
        if window:
            sums += self.window(window)
        return sums[0] / sums[1] if sums[1] else None

    def window(self, window):
        found = self.accumulate(window)
        return np.array(found) if self.step() else np.zeros(2)


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
    if dtype not in set(PRECISIONS.values()) or epochs < 1 or accumulation_steps < 1:
        raise ValueError("see the docstring")
    device = torch.device(device or next(model.parameters()).device)
    model.to(device).train()
    if dtype != torch.float16:
        scaler = None
    elif scaler is None:
        scaler = torch.amp.GradScaler(device.type)
    trainer = Trainer(
        model,
        dtype,
        device,
        optimizer or torch.optim.Adam(model.parameters()),
        criterion or torch.nn.CrossEntropyLoss(),
        scheduler,
        scaler,
        max_grad_norm,
    )
    trainer.optimizer.zero_grad()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.memory.reset_peak_memory_stats()
        torch.cuda.current_stream().synchronize()
    begin = time.monotonic()
    losses = [trainer.epoch(train_loader, accumulation_steps) for _ in range(epochs)]
    if on_gpu:
        torch.cuda.current_stream().synchronize()
    return AmpTraining(
        device=device.type,
        dtype=next(name for name, value in PRECISIONS.items() if value == dtype),
        losses=tuple(losses),
        optimizer_steps=np.sum(trainer.taken, dtype=int),
        skipped_steps=np.sum(np.logical_not(trainer.taken), dtype=int),
        final_scale=None if scaler is None else scaler.get_scale(),
        seconds=time.monotonic() - begin,
        peak_bytes=torch.cuda.memory_stats()["allocated_bytes.all.peak"] if on_gpu else None,
    )


def evaluate(model, loader, *, device=None, dtype=torch.float32):
    device = torch.device(device or next(model.parameters()).device)
    model.to(device)
    modules = list(model.modules())
    modes = np.array([module.training for module in modules])
    model.eval()
    try:
        hits = [_hits(model, inputs.to(device), dtype).cpu().numpy() == targets.numpy() for inputs, targets in loader]
    finally:
        for module, mode in zip(modules, modes.tolist(), strict=True):
            module.training = mode
    if not hits:
        raise ValueError("no batches")
    return np.concatenate(hits).mean()


@torch.no_grad()
def _hits(model, inputs, dtype):
    with torch.amp.autocast(inputs.device.type, dtype, enabled=dtype is not torch.float32):
        return model(inputs).float().argmax(dim=1)


def plot_losses(trainings, path):
    figure, (axis,) = plotting.new_figure("losses", x_label="epoch", y_label="loss")
    axis.plot(np.array([training.losses for training in trainings]).T)
    axis.legend([training.dtype for training in trainings])
    return plotting.save_png(figure, path)


def main(argv=None):
    parser = program.make_parser("train", results=pathlib.Path(__file__).parent / "results")
    workloads.add_training_options(parser)
    options = parser.parse_args(argv)
    train, test = workloads.batches(options.data, data_dir=options.data_dir)
    with open_device(options.device) as device:
        done = []
        for dtype in (PRECISIONS[name] for name in options.precisions):
            model = workloads.classifier(workloads.pixels(train)).to(device.torch_device)
            done.append(train_with_amp(model, train, options.epochs, dtype=dtype))
            print(dtype, f"{evaluate(model, test, dtype=dtype):.1%}")
        path = save_json(options.out / "training.json", [_plain(one) for one in done], device.provenance())
        program.print_written(path, plot_losses(done, options.out / "training.png"))
    return 0


def _plain(training):
    values = vars(training) | {"optimizer_steps": int(training.optimizer_steps)}
    return AmpTraining(**values | {"skipped_steps": int(training.skipped_steps)})


if __name__ == "__main__":
    raise SystemExit(program.run(main))
