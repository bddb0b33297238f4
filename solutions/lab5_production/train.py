"""Given: the trainer as a program, on real data. Nothing to write here.

Run: python -m labs.lab5_production.train
 or: torchrun --standalone --nproc-per-node 2 -m labs.lab5_production.train --device cpu
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit import data, models, program
from labkit.device import Device, open_device
from labkit.loader import ResumableLoader
from labkit.results import TrainerRun, save_json

from .config import TrainerConfig
from .launch import job
from .trainer import ProductionTrainer

RESULTS = Path(__file__).parent / "results"


def make_trainer(config: TrainerConfig, device: torch.device, *, batch_size: int = 32) -> ProductionTrainer:
    """Given: a trainer of a small network on digits; in a process group, one rank of it."""
    torch.manual_seed(config.seed)
    model = models.mlp().to(device)
    train_loader = ResumableLoader(data.load("digits"), batch_size, seed=config.seed)
    val_loader = ResumableLoader(data.load("digits", split="test"), 64, shuffle=False, padded=False)
    return ProductionTrainer(model, train_loader, val_loader, config)


def main(argv: Sequence[str] | None = None) -> int:
    """Train on digits as a configuration says; print a table; write OUT/training.json and OUT/training.png.

    Started again, it goes on from the newest checkpoint of OUT/run (or of the configuration's own folder).

    Returns:
        0, also when it was told to stop.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML; see TrainerConfig")
    parser.add_argument("--epochs", type=program.positive_int, metavar="N", help="instead of the configuration's")
    options = parser.parse_args(argv)
    default = TrainerConfig(
        output_dir=str(options.out / "run"), epochs=8, learning_rate=3e-3, warmup_steps=40, accumulation_steps=2,
        dtype="float16", max_grad_norm=1.0, keep_checkpoints=3, deterministic=True,
    )  # fmt: skip
    config = default if options.config is None else TrainerConfig.load(options.config)
    if options.epochs is not None:
        config = dataclasses.replace(config, epochs=options.epochs)
    with open_device(options.device) as device, job(device.torch_device) as own:
        trainer = make_trainer(config, own)
        run = trainer.fit()
        if trainer.rank == 0:
            config.save(Path(config.output_dir, "config.toml"))
            _report(run, device, options.out)
        del trainer  # while its process group is still there
    return 0


def _report(run: TrainerRun, device: Device, out: Path) -> None:
    if run.ended == "signal":
        print(f"told to stop after {run.optimizer_steps} steps: start it again to go on")
    if not run.epochs:
        return
    rows = [
        (each.epoch, f"{each.loss:.4g}", f"{test.loss:.4g}", f"{test.accuracy:.2%}", each.optimizer_steps, each.skipped_steps)
        for each, test in zip(run.epochs, run.validations, strict=True)
    ]  # fmt: skip
    program.print_table("Training", ("epoch", "loss", "validation", "accuracy", "steps", "skipped"), rows)
    from labkit import plotting  # not at the top: it costs half a second in every rank

    figure, (axis,) = plotting.new_figure("Loss of training and validation", x_label="epoch", y_label="mean loss")
    numbers = [each.epoch for each in run.epochs]
    axis.plot(numbers, [each.loss for each in run.epochs], "o-", color=plotting.COLORS[0], label="training")
    axis.plot(numbers, [test.loss for test in run.validations], "s-", color=plotting.COLORS[1], label="validation")
    axis.legend()
    written = save_json(out / "training.json", [run], device.provenance())
    program.print_written(written, plotting.save_png(figure, out / "training.png"))


if __name__ == "__main__":
    sys.exit(program.run(main))
