"""The real Fashion-MNIST, where it is: what labkit promises about it, and trainings of Labs 2 and 5 on it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset

import vgpu
from labkit import data, models
from labkit.loader import ResumableLoader
from solutions.lab2_mixed_precision import workloads
from solutions.lab2_mixed_precision.precision_comparison import measure_accuracies
from solutions.lab5_production.config import TrainerConfig
from solutions.lab5_production.trainer import ProductionTrainer

BATCHES = 100
LEAST_ACCURACY = 0.6
"""After so many batches of one epoch; a classifier that learns nothing is right once in ten images."""
ACCURACY_LOSS = 0.02
"""Between precisions at that early moment, when a few images more or less are still a matter of luck."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with Fashion-MNIST."""
    own = Path(os.environ.get(data.DATA_VARIABLE, data.DEFAULT_DATA_DIR))
    if (own / data.SOURCES["fashion-mnist"].folder).is_dir():
        return own
    if not data.DEBIAN_FASHION_MNIST.is_dir():
        pytest.skip("Fashion-MNIST is not on this machine: `apt install dataset-fashion-mnist` brings it")
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: a second thread would only wait for a core that others use."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.night
@pytest.mark.parametrize(("split", "samples", "deviation"), [("train", 60_000, 0.001), ("test", 10_000, 0.02)])
def test_fashion_mnist_is_complete_and_normalised(
    split: data.Split, samples: int, deviation: float, folder: Path
) -> None:
    images, labels = data.load("fashion-mnist", split=split, data_dir=folder).tensors
    assert images.shape == (samples, 1, 28, 28)
    assert labels.bincount().tolist() == [samples // 10] * 10
    # By the mean and deviation of the training images, from which the test images differ by chance.
    assert images.mean().item() == pytest.approx(0, abs=deviation)
    assert images.std().item() == pytest.approx(1, abs=deviation)


@pytest.mark.night
@pytest.mark.usefixtures("one_thread")
def test_16_bits_learn_fashion_mnist_as_well_as_32(folder: Path) -> None:
    train, test = workloads.batches("fashion-mnist", data_dir=folder)
    create_model = functools.partial(workloads.classifier, workloads.pixels(train))
    with vgpu.attach("T4"):
        accuracies = measure_accuracies(create_model, train[:BATCHES], test, epochs=1)
    assert accuracies["float32"] > LEAST_ACCURACY
    assert accuracies["float16"] == pytest.approx(accuracies["float32"], abs=ACCURACY_LOSS)
    assert accuracies["bfloat16"] == pytest.approx(accuracies["float32"], abs=ACCURACY_LOSS)


@pytest.mark.night
@pytest.mark.usefixtures("one_thread")
def test_a_resumed_training_learns_fashion_mnist_and_has_the_same_bits(folder: Path, tmp_path: Path) -> None:
    training = Subset(data.load("fashion-mnist", data_dir=folder), range(64 * BATCHES))
    validation = data.load("fashion-mnist", split="test", data_dir=folder)

    def trainer(name: str) -> ProductionTrainer:
        torch.manual_seed(0)
        config = TrainerConfig(
            output_dir=str(tmp_path / name), epochs=2, dtype="bfloat16", warmup_steps=10, accumulation_steps=2,
            max_grad_norm=1.0,
        )  # fmt: skip
        train_loader = ResumableLoader(training, 64)
        val_loader = ResumableLoader(validation, 1000, shuffle=False, padded=False)
        return ProductionTrainer(models.mlp(28 * 28), train_loader, val_loader, config)

    def weights(trainer: ProductionTrainer) -> list[Tensor]:
        return list(trainer.model.state_dict().values())

    whole = trainer("whole")
    run = whole.fit()
    assert run.validations[-1].samples == 10_000
    assert run.validations[-1].accuracy is not None
    assert run.validations[-1].accuracy > LEAST_ACCURACY
    first, second = trainer("parts"), trainer("parts")
    first.train_epoch(0)
    first.save_checkpoint(0)
    second.fit()
    assert all(map(torch.equal, weights(whole), weights(second)))
