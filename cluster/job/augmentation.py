"""Training images that are moved a little in every epoch, as Example 08 does with MNIST; validation images never are.

An image is rotated by at most DEGREES, then shifted by at most SHIFT of its size; black comes in at its edges. These
are torchvision's RandomRotation(10) and RandomAffine(0, translate=(0.1, 0.1)) with their defaults. torchvision draws
from the random numbers of whichever process loads an image. Here the moves depend on seed, epoch and the number of
the image. So a job that was interrupted goes on with the same bits, and ranks and loader processes change nothing.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from labkit.loader import ResumableLoader

DEGREES = 10.0
SHIFT = 0.1


def draw(samples: int, *, seed: int, epoch: int) -> Tensor:
    """The moves of all images in an epoch, [samples, 3] from -1 to 1: of the angle, the shift right, the shift down."""
    # The loader draws its order from the same two numbers: the hash keeps order and moves independent of each other.
    digest = hashlib.sha256(f"augmentation {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
    return torch.rand(samples, 3, dtype=torch.float64, generator=generator) * 2 - 1


def move(images: Tensor, moves: Tensor, black: Tensor) -> Tensor:
    """Rotate, then shift by whole pixels; each pixel is the nearest one of the image, or black.

    Args:
        images: [N, channels, height, width].
        moves: [N, 3], as `draw` has them.
        black: [channels, 1, 1].

    Returns:
        The moved images, in the shape and dtype of `images`.
    """
    channels, height, width = images.shape[1:]
    angle, right, down = (
        moves * torch.tensor([math.radians(DEGREES), SHIFT * width, SHIFT * height], dtype=torch.float64)
    ).T[:, :, None, None]
    # Backwards, from each pixel of the result to the pixel of the image that it shows.
    x = torch.arange(width)[None, None, :] - right.round()
    y = torch.arange(height)[None, :, None] - down.round()
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    x, y = x - middle_x, y - middle_y
    cosine, sine = angle.cos(), angle.sin()
    source_x = (cosine * x - sine * y + middle_x).round().long()
    source_y = (sine * x + cosine * y + middle_y).round().long()
    inside &= (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    source = source_y.clamp(0, height - 1) * width + source_x.clamp(0, width - 1)
    pixels = images.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, channels, -1)).view_as(images)
    return torch.where(inside[:, None], pixels, black)


class AugmentedDataset(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (moved image, label) of an epoch.

    Args:
        dataset: pairs (image, label) of tensors.
        black: see `move`.
        seed: see `draw`.
    """

    def __init__(self, dataset: TensorDataset, *, black: Tensor, seed: int) -> None:
        self.images, self.labels = dataset.tensors
        self.black = black
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the moves of this epoch."""
        self.moves = draw(len(self.labels), seed=self.seed, epoch=epoch)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """A batch at once, which DataLoader asks for if it can: far quicker than image by image."""
        chosen = torch.as_tensor(indices)
        moved = move(self.images[chosen], self.moves[chosen], self.black)
        return list(zip(moved, self.labels[chosen], strict=True))


class AugmentedLoader(ResumableLoader):
    """A `ResumableLoader` whose data set learns which epoch it is before any process that loads is started."""

    dataset: AugmentedDataset

    def __iter__(self) -> Iterator[Any]:
        if self.position >= len(self):
            self.set_epoch(self.epoch + 1)
        self.dataset.set_epoch(self.epoch)
        yield from super().__iter__()
