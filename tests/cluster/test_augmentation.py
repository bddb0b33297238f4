"""MNIST's augmentation: torchvision's transforms, of training images only, the same after a restart and on any rank."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from cluster.job import augmentation, settings
from cluster.job.augmentation import AugmentedDataset, AugmentedLoader, draw, move
from cluster.job.plan import make_plan
from cluster.job.training import make_trainer
from labkit import data

BLACK = torch.tensor([-0.4, -0.2, -0.1]).view(3, 1, 1)


def numbered(samples: int, channels: int = 1, size: int = 28) -> TensorDataset:
    """Images of random pixels whose labels are their numbers."""
    images = torch.rand(samples, channels, size, size, generator=torch.Generator().manual_seed(1))
    return TensorDataset(images, torch.arange(samples))


def batches(loader: Any) -> tuple[Tensor, Tensor]:
    """What a loader hands out in an epoch, in the order of the labels."""
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    return images[labels.argsort()], labels.sort().values


def loader(samples: int = 20, seed: int = 3, **options: Any) -> AugmentedLoader:
    dataset = AugmentedDataset(numbered(samples), black=BLACK[:1], seed=seed)
    return AugmentedLoader(dataset, 4, seed=seed, **options)


@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 20, 30)])
def test_images_are_moved_as_torchvision_moves_them(channels: int, height: int, width: int) -> None:
    from torchvision.transforms import functional  # not at the top: it costs seconds

    images = torch.rand(50, channels, height, width)
    moves = draw(50, seed=0, epoch=0)
    moved = move(images, moves, BLACK[:channels])
    # Nearest pixels: where one lies exactly between two, rounding errors choose, so a few may differ.
    equal = 0
    for image, own, (angle, right, down) in zip(images, moved, moves.tolist(), strict=True):
        fill = BLACK[:channels].flatten().tolist()
        rotated = functional.rotate(image, 10 * angle, fill=fill)
        shift = [round(0.1 * width * right), round(0.1 * height * down)]
        expected = functional.affine(rotated, angle=0, translate=shift, scale=1, shear=[0, 0], fill=fill)
        equal += int((own == expected).sum())
    assert equal >= 0.999 * images.numel()
    assert not torch.equal(moved, images)


def test_no_move_leaves_the_image_and_a_shift_brings_black_in() -> None:
    images, _ = numbered(1, channels=3).tensors
    still = torch.zeros(1, 3, dtype=torch.float64)
    assert torch.equal(move(images, still, BLACK), images)
    right = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    moved = move(images, right, BLACK)
    assert torch.equal(moved[..., 3:], images[..., :-3]), "a tenth of 28 pixels, to whole ones"
    assert torch.equal(moved[0, :, :, :3], BLACK.expand(3, 28, 3))


def test_moves_fill_the_range_evenly() -> None:
    moves = draw(10_000, seed=0, epoch=0)
    assert moves.shape == (10_000, 3)
    assert float(moves.abs().max()) <= 1
    assert torch.allclose(moves.mean(0), torch.zeros(3, dtype=torch.float64), atol=0.03)
    assert torch.allclose(moves.std(0), torch.full((3,), 1 / math.sqrt(3), dtype=torch.float64), atol=0.02)
    assert float(moves.T.corrcoef().fill_diagonal_(0).abs().max()) < 0.05


def test_the_same_seed_and_epoch_move_in_the_same_way_and_others_do_not() -> None:
    same, again = (draw(10, seed=4, epoch=2) for _ in range(2))
    assert torch.equal(same, again)
    for seed, epoch in ((4, 3), (5, 2), (2, 4)):
        assert not torch.isclose(draw(10, seed=seed, epoch=epoch), same).any()


def test_an_epoch_is_the_same_whoever_loads_it() -> None:
    images, labels = batches(loader())
    plain, _ = numbered(20).tensors
    assert labels.tolist() == list(range(20))
    assert not torch.equal(images, plain)
    assert torch.equal(images, batches(loader(num_workers=2))[0])
    for rank in range(2):
        own, numbers = batches(loader(rank=rank, world_size=2))
        assert torch.equal(own, images[numbers])


def test_every_epoch_moves_images_in_another_way_also_with_worker_processes() -> None:
    for workers in (0, 2):
        of_two = loader(num_workers=workers)
        first, second = batches(of_two)[0], batches(of_two)[0]
        assert not torch.equal(first, second)
        alone = loader()
        alone.set_epoch(1)
        assert torch.equal(batches(alone)[0], second)


def test_a_loader_that_was_interrupted_goes_on_with_the_same_images() -> None:
    whole = loader()
    whole.set_epoch(2)
    expected = list(whole)
    interrupted = loader()
    interrupted.set_epoch(2)
    iterator = iter(interrupted)
    for _ in range(3):
        next(iterator)
    later = loader()
    later.load_state_dict(interrupted.state_dict())
    rest = list(later)
    assert len(rest) == len(expected) - 3
    for (images, _), (expected_images, _) in zip(rest, expected[3:], strict=True):
        assert torch.equal(images, expected_images)


def test_global_random_numbers_are_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches(loader())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("dataset", "setting", "augmented"),
    [
        ("mnist", None, True),
        ("digits", None, False),
        ("fashion-mnist", None, False),
        ("cifar10", None, False),
        ("mnist", "false", False),
        ("digits", "TRUE", True),
    ],
)
def test_only_mnist_is_augmented_unless_the_job_is_told(dataset: str, setting: str | None, augmented: bool) -> None:
    environment = {"DATASET_TYPE": dataset} | ({} if setting is None else {"AUGMENTATION": setting})
    assert settings.read([], environment).augmented is augmented


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(settings.SettingError, match="AUGMENTATION='sometimes'"):
        settings.read([], {"AUGMENTATION": "sometimes"})


def mnist(folder: Path) -> None:
    """A few images in MNIST's format: random pixels, and their numbers as labels."""
    raw = folder / data.SOURCES["mnist"].folder
    raw.mkdir(parents=True)
    for split, count in (("train", 6), ("t10k", 4)):
        pixels = random.Random(split).randbytes(count * 784)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + pixels)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + bytes(range(count)))


@pytest.mark.parametrize("setting", ["auto", "false"])
def test_the_job_moves_training_images_of_mnist_and_no_validation_image(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist(tmp_path)
    flags = ["--dataset-type", "mnist", "--augmentation", setting, "--model", "small-cnn", "--batch-size", "2"]
    options = settings.read([*flags, "--data-dir", str(tmp_path), "--output-dir", str(tmp_path / "out")], {})
    trainer = make_trainer(options, make_plan(options, 1), torch.device("cpu"))
    plain, _ = data.load("mnist", data_dir=tmp_path).tensors
    validation, _ = data.load("mnist", split="test", data_dir=tmp_path).tensors
    moved, numbers = batches(trainer.train_loader)
    assert numbers.tolist() == list(range(len(plain)))
    assert torch.equal(moved, plain) == (setting == "false")
    if setting == "auto":
        own = draw(len(plain), seed=options.seed, epoch=0)
        assert torch.equal(moved, move(plain, own, data.black("mnist")))
    for _ in range(2):
        images, _ = batches(trainer.val_loader)
        assert torch.equal(images, validation)


def test_a_job_on_moved_images_has_the_same_bits_again(tmp_path: Path) -> None:
    """Twice from the beginning, and once stopped after an epoch: equal parameters. Without augmentation: others."""

    def parameters(name: str, *epochs: int, augmented: str = "true", seed: str = "0") -> Tensor:
        trained: Tensor | None = None
        for number in epochs:
            flags = ["--augmentation", augmented, "--model", "small-cnn", "--seed", seed, "--epochs", "2"]
            options = settings.read([*flags, "--batch-size", "512", "--output-dir", str(tmp_path / name)], {})
            trainer = make_trainer(options, make_plan(options, 1), torch.device("cpu"))
            if number == 1:
                trainer.train_epoch(0)
                trainer.save_checkpoint(0)
            else:
                trainer.fit()
            trained = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
        assert trained is not None
        return trained

    whole = parameters("whole", 2)
    assert torch.equal(whole, parameters("again", 2))
    assert torch.equal(whole, parameters("interrupted", 1, 2))
    assert not torch.equal(whole, parameters("plain", 2, augmented="false"))
    assert not torch.equal(whole, parameters("seed", 2, seed="1"))


def test_the_moves_are_those_of_the_example() -> None:
    assert (augmentation.DEGREES, augmentation.SHIFT) == (10, 0.1)
