"""A program: runs Lab 5's trainer, kills it at random moments, starts it again, and says what came out.

    python -m tests.labkit.killed_runs FOLDER KILLS SEED

A program of its own, because each run is a copy (fork) of a process that has imported everything, and has no threads.
Prints one line of JSON.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # here once, not in every copy
import torch.utils.tensorboard
from torch import nn

from labkit import data
from labkit.loader import ResumableLoader
from solutions.lab5_production.checkpoints import latest_checkpoint, list_checkpoints
from solutions.lab5_production.config import TrainerConfig
from solutions.lab5_production.trainer import ProductionTrainer

KEEP = 2
torch.set_num_threads(1)  # threads do not survive a fork
TRAINING, VALIDATION = data.load("digits"), data.load("digits", split="test")


def train(folder: Path) -> None:
    """A run that saves after every second step; ends with `end.pt`, which says how it ended."""
    config = TrainerConfig(
        output_dir=str(folder), epochs=4, learning_rate=3e-3, warmup_steps=10, accumulation_steps=2, max_grad_norm=1.0,
        save_every_steps=2, keep_checkpoints=KEEP, log_every_steps=5,
    )  # fmt: skip
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
    train_loader = ResumableLoader(TRAINING, 16, seed=3)
    val_loader = ResumableLoader(VALIDATION, 64, shuffle=False, padded=False)
    trainer = ProductionTrainer(model, train_loader, val_loader, config)
    run = asdict(trainer.fit())
    del run["seconds"]  # of this process alone
    end = {"model": model.state_dict(), "optimizer": trainer.optimizer.state_dict(), "next": torch.rand(3)}
    torch.save({**end, "run": json.dumps(run)}, folder / "end.pt")


def start(folder: Path) -> int:
    """The process id of a copy of this process that trains."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(folder)
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int, *, within: float) -> bool:
    """Whether it came to its end in so many seconds; it is killed when it did not."""
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return not os.WIFSIGNALED(status)


def end_of(folder: Path) -> Any:
    return torch.load(folder / "end.pt", weights_only=True)


def main(base: Path, kills: int, seed: int) -> dict[str, Any]:
    """Runs until `kills` of them were killed, then one to its end."""
    draw = random.Random(seed)
    began = time.monotonic()
    assert ended(start(base / "uninterrupted"), within=600), "the uninterrupted run did not end"
    longest = (time.monotonic() - began) * min(0.5, 3 / kills)
    steps: list[int] = []
    half_written, runs = 0, 0
    folders = [base / "0"]
    while len(steps) < kills:
        folder = folders[-1]
        runs += 1
        if ended(start(folder), within=draw.uniform(0, longest)):
            folders.append(base / str(len(folders)))  # it came through: another one
            continue
        newest = latest_checkpoint(folder / "checkpoints")
        steps.append(-1 if newest is None else int(newest.stem.removeprefix("step-")))
        kept = list_checkpoints(folder / "checkpoints")
        assert len(kept) <= KEEP + 1, kept
        half_written += len(list((folder / "checkpoints").glob(".*"))) if newest is not None else 0
    assert ended(start(folders[-1]), within=600), "the last run did not end"
    expected = end_of(base / "uninterrupted")
    return {
        "kills": len(steps),
        "runs": runs + 1,
        "checkpoint_steps_at_the_kills": steps,
        "kills_while_saving": half_written,
        "finished": len(folders),
        "same": [_fingerprint(end_of(folder)) == _fingerprint(expected) for folder in folders],
    }


def _fingerprint(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _fingerprint(item) for key, item in value.items()}
    return [_fingerprint(item) for item in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
