"""Given: one typed configuration that describes a run, kept in a TOML file.

Not for a model's own settings, and not for where the job runs (torchrun and `--device` say that).
"""

import dataclasses
import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from labkit import LabError
from labkit.decode import DecodeError, decode
from labkit.files import atomic_write

DTYPES = ("float32", "float16", "bfloat16")
OPTIMIZERS = ("adamw", "sgd")


class ConfigError(LabError):
    """A configuration does not make sense; the message names the key, and the file if it comes from one."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Everything that a run of the trainer depends on, besides model and data."""

    output_dir: str = "run"
    """Folder of the run: checkpoints in `checkpoints`, TensorBoard's events in `tensorboard`. Made if it is missing."""
    epochs: int = 5
    """In all, those before a resume included."""
    optimizer: str = "adamw"
    """One of OPTIMIZERS."""
    learning_rate: float = 1e-3
    """The highest one, after the warm-up."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 0.0
    warmup_steps: int = 0
    """Optimizer steps."""
    minimum_ratio: float = 0.0
    """The last learning rate, as a share of the highest."""
    dtype: str = "float32"
    """One of DTYPES: float32 without autocast, float16 with autocast and a scaled loss, bfloat16 with autocast."""
    initial_scale: float = 65536.0
    """The loss scale of float16 at the beginning."""
    accumulation_steps: int = 1
    """Batches of each rank behind one optimizer step."""
    max_grad_norm: float | None = None
    """The longest gradient, all parameters together; None: not clipped."""
    save_every_steps: int | None = None
    """Optimizer steps between checkpoints inside an epoch; None: only at its end."""
    keep_checkpoints: int = 3
    """How many of the newest checkpoints stay on the disk."""
    patience: int | None = None
    """Stop after so many epochs in a row without a lower validation loss; None: never."""
    log_every_steps: int = 10
    """Optimizer steps between two entries of the log."""
    seed: int = 0
    """Of the random numbers of a run that begins: rank r begins with seed + r."""
    deterministic: bool = False
    """Only operations that give the same bits each time; slower, and needed for a bit-for-bit resume on CUDA."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense: a run must not fail on its second day."""
        positive = ("epochs", "accumulation_steps", "keep_checkpoints", "log_every_steps")
        optional = ("save_every_steps", "patience")
        rules = {
            **{name: getattr(self, name) >= 1 for name in positive},
            **{name: getattr(self, name) is None or getattr(self, name) >= 1 for name in optional},
            "optimizer": self.optimizer in OPTIMIZERS,
            "dtype": self.dtype in DTYPES,
            "learning_rate": 0 < self.learning_rate < math.inf,
            "momentum": 0 <= self.momentum < 1,
            "weight_decay": 0 <= self.weight_decay < math.inf,
            "warmup_steps": self.warmup_steps >= 0,
            "minimum_ratio": 0 <= self.minimum_ratio <= 1,
            "initial_scale": 0 < self.initial_scale < math.inf,
            "max_grad_norm": self.max_grad_norm is None or 0 < self.max_grad_norm < math.inf,
        }
        for name, holds in rules.items():
            if not holds:
                raise ConfigError(f"{name} = {getattr(self, name)!r} makes no sense; see TrainerConfig.{name}")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a configuration from a TOML file that has one key for each field, at its top level.

        A key that is not there has its default. A whole number will do for a float.

        Raises:
            ConfigError: the file is not TOML, a key is unknown (the message names every unknown key), or a value has
                the wrong type or makes no sense. The message names the file.
            OSError: there is no such file, or the system cannot read it (it is a folder, for example).
        """
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        defaults = dataclasses.asdict(cls())
        if unknown := sorted(table.keys() - defaults.keys()):
            raise ConfigError(f"{path}: there is no {', '.join(unknown)}; the keys are {', '.join(defaults)}")
        try:
            return decode(cls, {**defaults, **table}, cls.__name__)
        except (DecodeError, ConfigError) as error:
            raise ConfigError(f"{path}: {error}") from error

    def save(self, path: Path | str) -> None:
        """Write the configuration so that `load` gives an equal one. TOML knows no None: such a key is left out.

        The file is replaced as a whole or left alone; missing folders are made.

        Raises:
            OSError: it cannot be written.
        """
        fields = dataclasses.asdict(self)
        lines = [f"{name} = {_toml(value)}\n" for name, value in fields.items() if value is not None]
        with atomic_write(Path(path)) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


def _toml(value: Any) -> str:
    """A string, number or bool as TOML writes it."""
    if isinstance(value, float):
        return repr(value)
    text = json.dumps(value, ensure_ascii=False)  # of these, JSON and TOML differ only in what follows
    return text.replace("\x7f", "\\u007f")
