"""Data sets: shapes and splits as documented, Debian's packed files, and clear errors instead of made-up data."""

import gzip
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from labkit import data

TRAIN, TEST = 6, 4
FILES = {
    "train-images-idx3-ubyte": TRAIN,
    "train-labels-idx1-ubyte": TRAIN,
    "t10k-images-idx3-ubyte": TEST,
    "t10k-labels-idx1-ubyte": TEST,
}


def idx(name: str, count: int) -> bytes:
    """A file in MNIST's format: image i is filled with 10 i, label i is i."""
    if "images" in name:
        return struct.pack(">4i", 0x803, count, 28, 28) + b"".join(bytes([10 * i]) * 784 for i in range(count))
    return struct.pack(">2i", 0x801, count) + bytes(range(count))


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the one of Debian's package, with a few made-up images."""
    folder = tmp_path / "usr-share"
    folder.mkdir()
    for name, count in FILES.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(name, count)))
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", folder)
    return folder


@pytest.fixture
def no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "not-installed")
    monkeypatch.delenv(data.DATA_VARIABLE, raising=False)


def tensors(name: str, **options: object) -> tuple[Tensor, Tensor]:
    images, labels = data.load(name, **options).tensors  # type: ignore[arg-type]
    return images, labels


def test_digits_have_the_documented_shapes_and_are_normalised() -> None:
    images, labels = tensors("digits")
    assert images.shape == (1438, 1, 8, 8)
    assert images.dtype == torch.float32
    assert labels.shape == (1438,)
    assert labels.dtype == torch.int64
    assert images.mean().item() == pytest.approx(0, abs=2e-3)
    assert images.std().item() == pytest.approx(1, abs=2e-3)


def test_the_splits_of_digits_are_disjoint_and_complete() -> None:
    train, test = tensors("digits")[0], tensors("digits", split="test")[0]
    assert len(train) + len(test) == 1797
    # No two of scikit-learn's digits are equal, so the images themselves tell.
    assert len({image.numpy().tobytes() for image in torch.cat([train, test])}) == 1797


def test_digits_contain_every_class_in_both_splits() -> None:
    for split in ("train", "test"):
        assert tensors("digits", split=split)[1].unique().tolist() == list(range(10))


def test_fashion_mnist_is_unpacked_from_debians_package(debian: Path, tmp_path: Path) -> None:
    images, labels = tensors("fashion-mnist", split="test", data_dir=tmp_path / "data")
    assert images.shape == (TEST, 1, 28, 28)
    assert labels.tolist() == [0, 1, 2, 3]
    assert images[3, 0, 0, 0].item() == pytest.approx((30 / 255 - 0.2860) / 0.3530)
    unpacked = {path.name for path in (tmp_path / "data" / "FashionMNIST" / "raw").iterdir()}
    assert unpacked == set(FILES)


def test_an_interrupted_unpacking_is_completed_the_next_time(
    debian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def copy_half(reader: gzip.GzipFile, writer: object) -> None:
            writer.write(reader.read(100))  # type: ignore[attr-defined]
            raise KeyboardInterrupt

        patched.setattr(data.shutil, "copyfileobj", copy_half)
        with pytest.raises(KeyboardInterrupt):
            data.load("fashion-mnist", data_dir=tmp_path / "data")
    assert tensors("fashion-mnist", data_dir=tmp_path / "data")[1].tolist() == list(range(TRAIN))


def test_a_truncated_package_file_is_an_error_and_leaves_nothing_unpacked(debian: Path, tmp_path: Path) -> None:
    packed = debian / "train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(data.DatasetError, match=r"train-images-idx3-ubyte\.gz cannot be unpacked"):
        data.load("fashion-mnist", data_dir=tmp_path / "data")
    assert not (tmp_path / "data" / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").exists()


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_missing_data_set_is_an_error_naming_both_ways_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(data.DatasetError) as caught:
        data.load(name, data_dir=tmp_path)
    for way in (name, str(tmp_path), f"gpulabs data download {name}", "--data-dir", data.DATA_VARIABLE):
        assert way in str(caught.value)


@pytest.mark.usefixtures("no_package")
def test_the_environment_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path / "elsewhere"))
    with pytest.raises(data.DatasetError, match="elsewhere"):
        data.load("mnist")


@pytest.mark.usefixtures("no_package")
def test_damaged_files_are_named(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in FILES.items():
        (raw / name).write_bytes(idx(name, count)[:-3])
    with pytest.raises(data.DatasetError, match=r"MNIST/raw is incomplete or damaged"):
        data.load("mnist", data_dir=tmp_path)


@pytest.mark.usefixtures("no_package")
def test_a_failed_download_leaves_nothing_that_looks_like_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision.datasets

    class Unreachable:
        def __init__(self, root: str, **_: object) -> None:
            raw = Path(root, "MNIST", "raw")
            raw.mkdir(parents=True)
            (raw / "train-images-idx3-ubyte").write_bytes(b"half")
            raise OSError("connection lost")

    monkeypatch.setattr(torchvision.datasets, "MNIST", Unreachable)
    with pytest.raises(data.DatasetError, match=r"could not be downloaded to .* \(connection lost\)"):
        data.load("mnist", data_dir=tmp_path, download=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_package")
def test_a_download_is_moved_into_place_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    real = torchvision.datasets.MNIST

    def fetched(root: str, train: bool, download: bool) -> object:
        if download:
            raw = Path(root, "MNIST", "raw")
            raw.mkdir(parents=True)
            for name, count in FILES.items():
                (raw / name).write_bytes(idx(name, count))
        return real(root=root, train=train)

    monkeypatch.setattr(torchvision.datasets, "MNIST", fetched)
    assert len(data.load("mnist", data_dir=tmp_path, download=True)) == TRAIN
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(data.DatasetError, match="digits, mnist, fashion-mnist, cifar10"):
        data.load("imagenet")


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="validation"):
        data.load("digits", split="validation")  # type: ignore[arg-type]
