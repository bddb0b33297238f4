"""The data sets of the labs, as tensors of normalised floats and integer labels.

Not a place for made-up data: if a data set is not there, the error names the ways to get it.

| name          | images, float32 | train / test  | where from                                                     |
|---------------|-----------------|---------------|----------------------------------------------------------------|
| digits        | [N, 1, 8, 8]    | 1438 / 359    | scikit-learn, inside its wheel: real handwriting, no download  |
| mnist         | [N, 1, 28, 28]  | 60000 / 10000 | torchvision                                                    |
| fashion-mnist | [N, 1, 28, 28]  | 60000 / 10000 | Debian's dataset-fashion-mnist package, or torchvision         |
| cifar10       | [N, 3, 32, 32]  | 50000 / 10000 | torchvision                                                    |

Labels are int64 from 0 to 9, shape [N]. Pixels are scaled to 0 ... 1, then shifted and divided by the mean and standard
deviation of the training images, channel by channel.

`gpulabs data download NAME --to DIR` fetches those that come from torchvision.
"""

import argparse
import gzip
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from labkit import LabError
from labkit.files import atomic_write

DATA_VARIABLE = "GPULABS_DATA"
"""Environment variable that names the data folder when `data_dir` is not given."""

DEFAULT_DATA_DIR = Path("data")
"""Used when neither is given: the folder `data` where the program was started."""

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist keeps the four original files, gzipped."""

Split = Literal["train", "test"]


class DatasetError(LabError):
    """A data set is unknown, missing or damaged."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """What torchvision calls a data set, where in the data folder it looks for it, and how its pixels are spread."""

    torchvision_name: str
    folder: str
    mean: tuple[float, ...]
    standard_deviation: tuple[float, ...]


# Means and deviations were computed over the training split; the MNIST pair is the one of PyTorch's own examples.
SOURCES = {
    "mnist": Source(torchvision_name="MNIST", folder="MNIST/raw", mean=(0.1307,), standard_deviation=(0.3081,)),
    "fashion-mnist": Source(
        torchvision_name="FashionMNIST", folder="FashionMNIST/raw", mean=(0.2860,), standard_deviation=(0.3530,)
    ),
    "cifar10": Source(
        torchvision_name="CIFAR10",
        folder="cifar-10-batches-py",
        mean=(0.4914, 0.4822, 0.4465),
        standard_deviation=(0.2470, 0.2435, 0.2616),
    ),
}
DIGITS_MEAN, DIGITS_STANDARD_DEVIATION, DIGITS_LARGEST_PIXEL = 0.3058, 0.3764, 16.0
NAMES = ("digits", *SOURCES)
NAMES_IN_WORDS = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
"""For help texts, so that every program names every data set."""

SILENCE_SECONDS = 30.0
"""How long a download waits for a server that sends nothing."""


def add_options(parser: argparse.ArgumentParser, *, default: str = "digits", also: str | None = None) -> None:
    """Add `--data` and `--data-dir`, which every program that loads a data set has.

    Args:
        parser: its result gets `data: str` and `data_dir: Path | None`, the arguments of `load`.
        default: the data set that is loaded without `--data`.
        also: one more choice, which only this program knows, as "NAME: meaning".
    """
    extra = () if also is None else (also.partition(":")[0],)
    parser.add_argument(
        "--data",
        default=default,
        choices=(*extra, *NAMES),
        metavar="NAME",
        help=f"data set: {NAMES_IN_WORDS}" + (f"; {also}" if also else ""),
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help=f"folder of the data sets (default: {DATA_VARIABLE}, else {DEFAULT_DATA_DIR}/); digits need none",
    )


def load(
    name: str, *, split: Split = "train", data_dir: Path | str | None = None, download: bool = False
) -> TensorDataset:
    """Load one split of a data set onto the CPU.

    Args:
        name: "digits", "mnist", "fashion-mnist" or "cifar10".
        split: "train" or "test". The split of digits is fixed: every fifth image is a test image (neighbouring images
            come from one writer, so both splits see every writer).
        data_dir: folder that holds the data sets, laid out as torchvision does; default: the environment variable
            GPULABS_DATA, else `data` in the current folder. Digits need none.
        download: fetch a missing data set from the network.

    Returns:
        A data set of pairs (image, label); `.tensors` are images [N, channels, height, width] float32 and labels [N]
        int64, in the original order.

    Raises:
        DatasetError: the name is unknown, the files are not there and may not or cannot be downloaded, or they are
            damaged.
        ValueError: `split` is neither "train" nor "test".
    """
    if split not in ("train", "test"):
        raise ValueError(f'split is "train" or "test", not {split!r}')
    if name == "digits":
        return _digits(split)
    if name not in SOURCES:
        raise DatasetError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    root = folder_of(data_dir)
    if name == "fashion-mnist" and DEBIAN_FASHION_MNIST.is_dir():
        _unpack(DEBIAN_FASHION_MNIST, root / SOURCES[name].folder)
    return _from_torchvision(name, split, root, download)


def folder_of(data_dir: Path | str | None = None) -> Path:
    """The data folder: the one that is given, else that of GPULABS_DATA, else `data` in the current folder."""
    return Path(data_dir or os.environ.get(DATA_VARIABLE) or DEFAULT_DATA_DIR)


def black(name: str) -> Tensor:
    """A black pixel of a data set as `load` gives it, [channels, 1, 1]: what surrounds an image that is moved."""
    if name == "digits":
        return torch.tensor(-DIGITS_MEAN / DIGITS_STANDARD_DEVIATION).view(1, 1, 1)
    source = SOURCES[name]
    return (-torch.tensor(source.mean) / torch.tensor(source.standard_deviation)).view(-1, 1, 1)


def _digits(split: Split) -> TensorDataset:
    rows = torch.tensor(_digits_table(), dtype=torch.float32)  # 64 pixels and a label
    images, labels = rows[:, :-1].reshape(-1, 1, 8, 8) / DIGITS_LARGEST_PIXEL, rows[:, -1].long()
    chosen = (torch.arange(len(labels)) % 5 == 4) == (split == "test")
    return TensorDataset((images[chosen] - DIGITS_MEAN) / DIGITS_STANDARD_DEVIATION, labels[chosen])


def _digits_table() -> Any:
    """[1797, 65]: what `sklearn.datasets.load_digits` reads, without the second that importing scikit-learn costs."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(str(spec and spec.origin)).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _unpack(source: Path, target: Path) -> None:
    """Unpack every .gz file of `source` that `target` lacks; each appears whole or not at all."""
    for packed in sorted(source.glob("*.gz")):
        unpacked = target / packed.stem
        if unpacked.exists():
            continue
        try:
            with atomic_write(unpacked) as temporary, gzip.open(packed) as reader, temporary.open("wb") as writer:
                shutil.copyfileobj(reader, writer)
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise DatasetError(
                f"{packed} cannot be unpacked to {target} ({error}). Name a folder you can write with --data-dir or "
                f"{DATA_VARIABLE}; if the file is damaged, reinstall the package dataset-fashion-mnist."
            ) from error


def _from_torchvision(name: str, split: Split, root: Path, download: bool) -> TensorDataset:
    import torchvision.datasets  # not at the top: it costs seconds

    source = SOURCES[name]
    folder = root / source.folder
    dataset_class = getattr(torchvision.datasets, source.torchvision_name)
    if not folder.is_dir():
        if not download:
            raise DatasetError(_missing(name, f"is not in {folder}"))
        _download(name, dataset_class, root)
    try:
        raw = dataset_class(root=str(root), train=split == "train", download=False)
        images = torch.as_tensor(raw.data)
        labels = torch.as_tensor(raw.targets, dtype=torch.int64)
    except Exception as error:  # torchvision has no error class of its own for incomplete and damaged files
        raise DatasetError(
            f"{name} in {folder} is incomplete or damaged ({error}). Remove that folder, then fetch the data set again."
        ) from error
    # Grey images come as [N, H, W], colour ones as [N, H, W, C]; PyTorch's convolutions want [N, C, H, W].
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
    mean = torch.tensor(source.mean).view(1, -1, 1, 1)
    standard_deviation = torch.tensor(source.standard_deviation).view(1, -1, 1, 1)
    return TensorDataset((images.to(torch.float32) / 255 - mean) / standard_deviation, labels)


def download(name: str, to: Path | str | None = None) -> Path:
    """Fetch a data set with torchvision, which checks its files, and leave it where `load` finds it.

    A data set that is there is read and kept. An interrupted download leaves nothing that looks like a data set.
    torchvision shows its progress on standard error.

    Args:
        name: "mnist", "fashion-mnist" or "cifar10". Digits are part of scikit-learn.
        to: the data folder, as `data_dir` of `load`.

    Returns:
        The folder that holds the files of this data set.

    Raises:
        DatasetError: the name is unknown, the download failed, or the files that are there are damaged.
    """
    if name not in SOURCES:
        reason = "is part of scikit-learn and needs no download" if name == "digits" else "is unknown"
        raise DatasetError(f"the data set {name!r} {reason}; choose one of {', '.join(SOURCES)}")
    for split in ("train", "test"):
        load(name, split=split, data_dir=to, download=True)
    return folder_of(to) / SOURCES[name].folder


def _download(name: str, dataset_class: Callable[..., object], root: Path) -> None:
    """Fetch both splits into a scratch folder and move them into place as a whole."""
    folder = Path(SOURCES[name].folder)
    before = socket.getdefaulttimeout()
    try:
        # torchvision sets no limit of its own: a server, or a firewall, that never answers would be waited for.
        socket.setdefaulttimeout(SILENCE_SECONDS)
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as scratch:
            dataset_class(root=scratch, train=True, download=True)
            (root / folder).parent.mkdir(parents=True, exist_ok=True)
            os.rename(Path(scratch) / folder, root / folder)
    except Exception as error:  # no network, a full disk, a wrong checksum: torchvision has no class for these either
        if not (root / folder).is_dir():  # another process may have been quicker
            reason = " ".join(str(error).split())  # torchvision reports each server on lines of its own
            raise DatasetError(_missing(name, f"could not be downloaded to {root} ({reason})")) from error
    finally:
        socket.setdefaulttimeout(before)


def _missing(name: str, happened: str) -> str:
    message = (
        f"the data set {name} {happened}. On a machine with a network run `gpulabs data download {name} --to DIR`, "
        f"then name that folder, or a copy of it, with --data-dir or {DATA_VARIABLE}."
    )
    if name == "fashion-mnist":
        message += " On Debian and Ubuntu, `apt install dataset-fashion-mnist` brings the files too."
    return message
