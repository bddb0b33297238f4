"""Finds a learning rate and a batch size with Ray Tune: `python -m cluster.job.tune --trials 8 -- --epochs 5`.

Each trial is the job itself in a process of its own, so that what was found holds for the job. Not for one training on
several GPUs (that is torchrun's), nor for a search that ends bad trials early.
"""

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.job.output import METADATA_NAME
from cluster.job.settings import SettingError
from labkit import program
from labkit.files import atomic_write

BATCH_SIZES = (32, 64, 128, 256)
LEARNING_RATES = (1e-4, 1e-2)
"""Drawn between these, evenly on a logarithmic scale."""
RESULT_NAME = "tuning.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials; print and write the best one's settings. What follows `--` goes to every trial's job.

    Raises:
        SettingError: Ray Tune is not installed, or every trial failed.
    """
    parser = argparse.ArgumentParser(prog="cluster.job.tune", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=program.positive_int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--gpus-per-trial", type=float, default=0, metavar="N", help="0.5: two share one (default: 0)")
    parser.add_argument("--cpus-per-trial", type=float, default=1, metavar="N", help="default: 1")
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"), metavar="DIR", help="default: runs/tuning")
    parser.add_argument("flags", nargs="*", help="of cluster.job, after --")
    options = parser.parse_args(argv)
    try:
        tune: Any = importlib.import_module("ray.tune")
    except ImportError as error:
        raise SettingError('Ray Tune is not installed: pip install "ray[tune]"') from error
    out, here = options.out.resolve(), Path.cwd()

    def trial(settings: dict[str, Any]) -> dict[str, float]:
        return run_trial(settings, out / f"trial-{tune.get_context().get_trial_id()}", options.flags, here)

    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": options.cpus_per_trial, "gpu": options.gpus_per_trial}),
        param_space={
            "learning_rate": tune.loguniform(*LEARNING_RATES),
            "batch_size": tune.choice(list(BATCH_SIZES)),
        },
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=options.trials),
        run_config=tune.RunConfig(storage_path=str(out / "ray"), name="tuning"),
    )
    results = tuner.fit()
    if len(results) == results.num_errors:
        raise SettingError(f"every trial failed; their messages are in {out / 'ray'}")
    best = results.get_best_result()
    result = {**best.config, "loss": best.metrics["loss"], "accuracy": best.metrics["accuracy"]}
    with atomic_write(out / RESULT_NAME) as temporary:
        temporary.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(", ".join(f"{name} {value:.4g}" for name, value in result.items()))
    program.print_written(out / RESULT_NAME)
    return 0


def run_trial(settings: dict[str, Any], folder: Path, flags: Sequence[str], checkout: Path) -> dict[str, float]:
    """Run the job with these settings; returns the validation loss and accuracy of its best epoch.

    Raises:
        RuntimeError: the job failed; the end of its output is in the message.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "cluster.job", *flags, *words, "--output-dir", str(folder)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the job ended with {done.returncode}: {done.stderr[-2000:]}")
    metadata = json.loads((folder / METADATA_NAME).read_text(encoding="utf-8"))
    return {"loss": float(metadata["loss"]), "accuracy": float(metadata["accuracy"])}


if __name__ == "__main__":
    sys.exit(program.run(main))
