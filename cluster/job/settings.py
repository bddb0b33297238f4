"""What the job is told: each setting by an environment variable, as manifests and batch scripts do, or by a flag."""

import argparse
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import LabError, data, program

PACKAGES = ("solutions.lab5_production", "labs.lab5_production")
"""Where the trainer comes from: the first that is there, unless the job is told."""
PRECISIONS = {"true": "float16", "false": "float32", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
"""MIXED_PRECISION by the dtype of the products."""
MODELS = ("resnet18", "small-cnn")
AUGMENTATIONS = ("auto", "true", "false")
AUGMENTED_BY_DEFAULT = ("mnist",)
"""What AUGMENTATION=auto means: Example 08 moves the training images of MNIST."""


class SettingError(LabError):
    """A setting makes no sense; the message names it as it was given."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything the job is told."""

    dataset_type: str
    augmentation: str
    """A key of AUGMENTATIONS."""
    epochs: int
    batch_size: int
    """Of each rank."""
    learning_rate: float
    mixed_precision: str
    """A key of PRECISIONS."""
    output_dir: Path
    data_dir: Path | None
    model: str
    device: str
    """auto, cpu, cuda or vgpu:MODEL; auto takes a GPU that is there, else the CPU: a job does not simulate unasked."""
    optimizer: str
    patience: int | None
    """Early stopping."""
    save_every_steps: int | None
    """Checkpoints inside an epoch; there is one after every epoch in any case."""
    accumulation_steps: int
    global_batch_size: int | None
    """Samples behind a step on all ranks, however many there are: `plan`."""
    learning_rate_batch: int | None
    """Samples behind a step that the learning rate was found for; another batch changes it: `plan`."""
    seed: int
    workers: int
    """Of each rank's data loader."""
    mlflow_tracking_uri: str | None
    package: str

    @property
    def augmented(self) -> bool:
        """Whether training images are moved a little."""
        if self.augmentation == "auto":
            return self.dataset_type in AUGMENTED_BY_DEFAULT
        return self.augmentation == "true"

    def dtype(self, device: str) -> str:
        """Of the products: "true" means float16 on a GPU and float32 on a CPU, which float16 only slows down."""
        if self.mixed_precision == "true" and device == "cpu":
            return "float32"
        return PRECISIONS[self.mixed_precision]


def _number(kind: Callable[[str], Any], low: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} on")
        return value

    return read


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text.lower()

    return read


SETTINGS: dict[str, tuple[Callable[[str], Any], str | None, str]] = {
    "dataset_type": (_one_of(*data.NAMES), "digits", f"data set: {data.NAMES_IN_WORDS}"),
    "augmentation": (
        _one_of(*AUGMENTATIONS),
        "auto",
        "true: training images are rotated and shifted a little; false; auto: mnist only",
    ),
    "epochs": (program.positive_int, "20", "in all, those before a restart included"),
    "batch_size": (program.positive_int, "128", "of each rank"),
    "learning_rate": (_number(float, 1e-12), "0.001", "the highest one"),
    "mixed_precision": (_one_of(*PRECISIONS), "true", "true, false, float16, bfloat16 or float32"),
    "output_dir": (Path, "runs/job", "checkpoints, model, metadata; made when missing"),
    "data_dir": (Path, None, f"folder of the data sets; else {data.DATA_VARIABLE}, else {data.DEFAULT_DATA_DIR}/"),
    "model": (_one_of(*MODELS), "resnet18", " or ".join(MODELS)),
    "device": (str, "auto", "auto (a GPU, else the CPU), cpu, cuda or vgpu:MODEL"),
    "optimizer": (_one_of("adamw", "sgd"), "adamw", "adamw or sgd"),
    "patience": (program.positive_int, None, "stop after so many epochs without a lower validation loss"),
    "save_every_steps": (program.positive_int, None, "a checkpoint every so many steps, besides one an epoch"),
    "accumulation_steps": (program.positive_int, "1", "batches behind one step"),
    "global_batch_size": (program.positive_int, None, "samples behind a step, whatever the number of ranks"),
    "learning_rate_batch": (program.positive_int, None, "samples behind a step that the learning rate was found for"),
    "seed": (_number(int, 0), "0", "of the random numbers"),
    "workers": (_number(int, 0), "0", "processes that load data, of each rank"),
    "mlflow_tracking_uri": (str, None, "where MLflow keeps the run; without it there is no tracking"),
    "package": (str, None, f"Lab 5's trainer (default: the first there of {', '.join(PACKAGES)})"),
}
"""Type, default and meaning of each; the environment variable has the same name in capitals."""


def read(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: a flag, else the environment variable, else the default.

    Raises:
        SettingError: an environment variable makes no sense. A flag that makes none ends the program with status 2.
    """
    environment = os.environ if environment is None else environment
    parser = argparse.ArgumentParser(
        prog="cluster.job", description="Distributed training on Lab 5's trainer. Each flag is also read from the "
        "environment variable of the same name in capitals: --batch-size from BATCH_SIZE."
    )  # fmt: skip
    for name, (kind, default, meaning) in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=f"{meaning} ({default})")
    flags = vars(parser.parse_args(argv))
    return Settings(**{name: _value(name, flags[name], environment) for name in SETTINGS if name != "package"},
                    package=_package(flags["package"] or environment.get("PACKAGE")))  # fmt: skip


def _value(name: str, flag: Any, environment: Mapping[str, str]) -> Any:
    kind, default, _ = SETTINGS[name]
    text = environment.get(name.upper()) or default
    if flag is not None or text is None:
        return flag
    try:
        return kind(text)
    except argparse.ArgumentTypeError as error:
        raise SettingError(f"{name.upper()}={error}") from error


def _package(name: str | None) -> str:
    for package in PACKAGES if name is None else (name,):
        try:
            if importlib.util.find_spec(f"{package}.trainer") is not None:
                return package
        except ModuleNotFoundError:
            continue
    raise SettingError(
        f"there is no trainer in {name or ' or '.join(PACKAGES)}: run it in the checkout, or set PACKAGE"
    )
