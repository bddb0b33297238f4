"""Given: the trainer as a program, on real data. Nothing to write here.

Run: python -m labs.lab5_production.train
 or: torchrun --standalone --nproc-per-node 2 -m labs.lab5_production.train --device cpu
"""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from labkit import data, models, program
from labkit.device import Device, open_device
from labkit.loader import ResumableLoader
from labkit.results import TrainerRun, save_json

from .config import TrainerConfig
from .launch import job
from .log import MetricSink
from .trainer import ProductionTrainer

RESULTS = Path(__file__).parent / "results"
BATCH_SIZE = 32
"""Of each rank."""


def make_trainer(
    config: TrainerConfig,
    device: torch.device,
    *,
    name: str = "digits",
    data_dir: Path | None = None,
    monitor: MetricSink | None = None,
) -> ProductionTrainer:
    """A trainer of a small network on a data set of `labkit.data`; in a process group, one rank of it."""
    training, validation = (data.load(name, split=split, data_dir=data_dir) for split in ("train", "test"))
    torch.manual_seed(config.seed)
    model = models.mlp(training.tensors[0][0].numel()).to(device)
    train_loader = ResumableLoader(training, BATCH_SIZE, seed=config.seed)
    val_loader = ResumableLoader(validation, 8 * BATCH_SIZE, shuffle=False, padded=False)
    return ProductionTrainer(model, train_loader, val_loader, config, monitor=monitor)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as a configuration says; print a table; write OUT/training.json and OUT/training.png.

    Started again, it goes on from the newest checkpoint of OUT/run (or of the configuration's own folder). With
    `--port` the monitor of Task 5.3 receives the metrics, and shows them there.

    Returns:
        0, also after SIGTERM.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML; see TrainerConfig")
    data.add_options(parser)
    parser.add_argument("--port", type=int, metavar="N", help="of the live monitor; 0 takes a free one")
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
        with _monitor(options.port, Path(config.output_dir)) as monitor:
            trainer = make_trainer(config, own, name=options.data, data_dir=options.data_dir, monitor=monitor)
            run = trainer.fit()
        if trainer.rank == 0:
            config.save(Path(config.output_dir, "config.toml"))
            _report(run, device, options.out)
        del trainer  # while its process group is still there
    return 0


@contextmanager
def _monitor(port: int | None, folder: Path) -> Iterator[MetricSink | None]:
    if port is None:
        yield None
        return
    from .monitor import GPUMonitor  # not at the top: training needs no monitor

    with GPUMonitor(folder / "monitor", port=port) as monitor:
        if monitor.url is not None:
            print(f"monitor: {monitor.url}", flush=True)
        yield monitor


def _report(run: TrainerRun, device: Device, out: Path) -> None:
    if run.ended == "signal":
        print(f"stopped after {run.optimizer_steps} steps: start it again to go on")
    if not run.epochs:
        return
    rows = [
        (train.epoch, f"{train.loss:.4g}", f"{test.loss:.4g}", f"{test.accuracy:.2%}", train.optimizer_steps,
         train.skipped_steps)
        for train, test in zip(run.epochs, run.validations, strict=True)
    ]  # fmt: skip
    program.print_table("Training", ("epoch", "loss", "validation", "accuracy", "steps", "skipped"), rows)
    from labkit import plotting  # not at the top: it costs half a second in every rank

    figure, (axis,) = plotting.new_figure("Loss of training and validation", x_label="epoch", y_label="mean loss")
    numbers = [each.epoch for each in run.epochs]
    axis.plot(numbers, [each.loss or math.nan for each in run.epochs], "o-", color=plotting.COLORS[0], label="training")
    axis.plot(numbers, [test.loss for test in run.validations], "s-", color=plotting.COLORS[1], label="validation")
    axis.legend()
    written = save_json(out / "training.json", [run], device.provenance())
    program.print_written(written, plotting.save_png(figure, out / "training.png"))


if __name__ == "__main__":
    sys.exit(program.run(main))
