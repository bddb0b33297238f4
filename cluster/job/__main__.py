"""`torchrun ... -m cluster.job`, or `python -m cluster.job` for one process."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch

from cluster.job import output, settings, tracking, training
from cluster.job.plan import make_plan
from labkit import program
from labkit.device import open_device

TOLD_TO_STOP = 128 + 15
"""As shells have it after SIGTERM: whoever started the job sees that it is not done, and may start it again."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and leave the model behind; started again, go on from the newest checkpoint of the output folder.

    Returns:
        0; 143 when it was told to stop before it was done (its checkpoint is complete).
    """
    options = settings.read(argv)
    signal.signal(signal.SIGTERM, _stop_before_training)  # until the trainer puts its own in this place
    signal.signal(signal.SIGUSR1, _as_told_to_stop)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    with (
        open_device(name, gpus=ranks_here) as device,
        training.package(options, "launch").job(device.torch_device) as own,
    ):
        rank = int(os.environ.get("RANK", 0))
        with tracking.tracked(options, rank=rank) as sink:
            plan = make_plan(options, training.ranks())
            trainer = training.make_trainer(options, plan, own, monitor=sink)
            begins = training.begin(options, plan, trainer)
            if rank == 0:
                print(f"{trainer.world_size} ranks, {begins}", flush=True)
                print(f"  {plan}", flush=True)
                for setting, value in asdict(options).items():
                    print(f"  {setting}: {value}", flush=True)
            run = trainer.fit()
        if rank == 0 and run.ended != "signal":
            last = run.validations[-1]
            print(f"{run.ended} after {len(run.epochs)} epochs: loss {last.loss:.4f}, accuracy {last.accuracy:.2%}")
            program.print_written(*output.write(options, plan, trainer, run, device))
        del trainer  # while its process group is still there
    if run.ended == "signal":
        print(f"stopped after {run.optimizer_steps} steps: start it again to go on", file=sys.stderr)
        return TOLD_TO_STOP
    return 0


def _as_told_to_stop(number: int, frame: object) -> None:
    """Batch systems announce the end of a job's time so."""
    signal.raise_signal(signal.SIGTERM)


def _stop_before_training(number: int, frame: object) -> None:
    """There is no training yet that could be lost."""
    print("asked to stop before the training had begun: start it again to go on", file=sys.stderr)
    sys.exit(TOLD_TO_STOP)


if __name__ == "__main__":
    sys.exit(program.run(main))
