"""Given: the data and models that Lab 2 trains and times.

Nothing to write here, and nothing about precision: everything is float32 on the CPU, as a program finds it.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from labkit import data, models, program

from .readings import PRECISIONS

HARMLESS, LARGE_GRADIENTS, SMALL_GRADIENTS, LARGE_ACTIVATIONS = 1.0, 2.0**14, 2.0**-14, 2.0**-20
"""Gains of the unstable model."""

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""

BATCH_SIZE = 128
SEED = 2

LAYERS, WIDTH, HEADS, LENGTH = 12, 512, 8, 256
"""Of the larger model: 38 million parameters in its blocks, as a small language model has."""


def _precisions(text: str) -> tuple[str, ...]:
    """Argument type: names of precisions, separated by commas."""
    names = tuple(text.split(","))
    if not set(names) <= PRECISIONS.keys():
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {', '.join(PRECISIONS)}")
    return names


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """The options of a program that trains the classifier in several precisions."""
    parser.add_argument(
        "--precisions", type=_precisions, default=tuple(PRECISIONS), metavar="NAME,NAME", help="those to train in"
    )
    data.add_options(parser)
    parser.add_argument("--epochs", type=program.positive_int, default=10, metavar="N", help="of each training")


def batches(name: str = "digits", *, data_dir: Path | str | None = None) -> tuple[list[Batch], list[Batch]]:
    """Batches of the training and of the test images, each in one fixed random order, so that all runs see the same.

    Lists, for they are small and quick; a DataLoader would do as well.

    Args:
        name: a data set of `labkit.data`; "digits" is always there.
        data_dir: the folder of the data sets; digits need none.

    Returns:
        Two lists of (images [N, channels, height, width] float32, labels [N] int64); the last batch may be short.

    Raises:
        labkit.data.DatasetError: there is no such data set, or it is not on this machine.
    """
    order = torch.Generator().manual_seed(SEED)
    splits = []
    for dataset in (
        data.load(name, split="train", data_dir=data_dir),
        data.load(name, split="test", data_dir=data_dir),
    ):
        images, labels = dataset.tensors
        shuffled = torch.randperm(len(labels), generator=order)
        parts = images[shuffled].split(BATCH_SIZE), labels[shuffled].split(BATCH_SIZE)
        splits.append(list(zip(*parts, strict=True)))
    return splits[0], splits[1]


def pixels(batch_list: list[Batch]) -> int:
    """Numbers per image."""
    images, _ = batch_list[0]
    return images[0].numel()


def classifier(in_features: int = 64) -> nn.Module:
    """A classifier of ten classes with two hidden layers of 128, the same weights on every call.

    Args:
        in_features: numbers per image: 64 for digits, 784 for MNIST and Fashion-MNIST, 3072 for CIFAR-10.
    """
    torch.manual_seed(SEED)
    return models.mlp(in_features=in_features, hidden=(128, 128), classes=10)


class Multiply(nn.Module):
    """Multiplies by a constant, in a given dtype or in that of its input."""

    def __init__(self, factor: float, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.factor = factor
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype or x.dtype) * self.factor


class UnstableModel(nn.Module):
    """Reconstructs images through a bottleneck; its numbers leave the comfortable range of 16 bits on the way.

    Maps images [N, 1, 8, 8] to the same shape. Before the end its output is divided by `gain` in the dtype of autocast,
    then multiplied by it in float32. With unlimited range that changes nothing, whatever the gain; in float32 not even
    the last bit, as the gain is a power of two. But between the two, activations are 1 / gain and gradients gain times
    as large as usual:

    - a large gain makes gradients overflow in float16 when the loss is scaled too much;
    - a small gain makes them underflow to 0 when it is scaled too little, or not at all;
    - a very small gain makes the activations overflow, and no loss scale can help.

    Args:
        gain: a power of two.
    """

    def __init__(self, gain: float = HARMLESS) -> None:
        super().__init__()
        self.gain = gain
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(32, 64), nn.Unflatten(1, (1, 8, 8)))
        self.shrink = Multiply(1 / gain)
        self.restore = Multiply(gain, torch.float32)

    def forward(self, images: Tensor) -> Tensor:
        pixels: Tensor = self.restore(self.shrink(self.decoder(self.encoder(images))))
        return pixels


def large_model(*, layers: int = LAYERS, width: int = WIDTH) -> nn.Module:
    """Transformer blocks and a linear head that maps tokens [N, LENGTH, width] to logits [N, 10]."""
    blocks = [models.TransformerBlock(width, HEADS) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(LENGTH * width, 10))


def large_batch(samples: int = 32, *, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Random tokens [samples, LENGTH, width] and labels [samples]: only time and memory are looked at."""
    return torch.randn(samples, LENGTH, width), torch.randint(0, 10, (samples,))
