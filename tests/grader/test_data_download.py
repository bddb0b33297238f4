"""`gpulabs data download`: torchvision fetches from a server on this machine; what is left behind, whatever happens."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import pickle
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from grader.cli import app
from labkit import data
from tests.labkit.test_labkit_data import FILES, TEST, TRAIN, idx

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120
CIFAR_IMAGES = 2
"""In each of the five training files, and in the test file."""


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` by the last part of the address; stops in the middle of each while `stalls` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.stalls = False
        self.halfway, self.over = threading.Event(), threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        self.server.requested.append(name)
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if self.server.stalls:
                self.server.halfway.set()
                self.server.over.wait(LIMIT_SECONDS)
            self.wfile.write(content[len(content) // 2 :])
        except OSError:
            pass  # torchvision opens each address once only to see where it leads

    def log_message(self, *_: object) -> None:
        """Nothing: the test shows what matters."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """Every data set, small and made up, on this machine; torchvision is pointed there and knows the checksums."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.delenv(data.DATA_VARIABLE, raising=False)
        monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "not-installed")
        _offer_idx(server, monkeypatch)
        _offer_cifar(server, monkeypatch)
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


def _offer_idx(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets  # not at the top: it costs seconds

    server.files |= {f"{name}.gz": gzip.compress(idx(name, count)) for name, count in FILES.items()}
    for kind in (datasets.MNIST, datasets.FashionMNIST):
        checked = [(name, _md5(server.files[name])) for name, _ in kind.resources]
        monkeypatch.setattr(kind, "mirrors", [server.address])
        monkeypatch.setattr(kind, "resources", checked)


def _offer_cifar(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    kind = datasets.CIFAR10
    names = [name for name, _ in (*kind.train_list, *kind.test_list)]
    pixels = np.arange(CIFAR_IMAGES * 3 * 32 * 32, dtype=np.uint8).reshape(CIFAR_IMAGES, -1)
    files = {name: pickle.dumps({"data": pixels, "labels": [3, 7]}) for name in names}
    files["batches.meta"] = pickle.dumps({"label_names": [str(number) for number in range(10)]})
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.files[kind.filename] = packed.getvalue()
    monkeypatch.setattr(kind, "url", server.address + kind.filename)
    monkeypatch.setattr(kind, "tgz_md5", _md5(packed.getvalue()))
    for each in ("train_list", "test_list"):
        monkeypatch.setattr(kind, each, [[name, _md5(files[name])] for name, _ in getattr(kind, each)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": _md5(files["batches.meta"])})


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def gpulabs(*words: str) -> Result:
    return CliRunner().invoke(app, ["data", "download", *words])


@pytest.mark.parametrize(
    ("name", "counts", "shape"),
    [
        ("mnist", (TRAIN, TEST), (1, 28, 28)),
        ("fashion-mnist", (TRAIN, TEST), (1, 28, 28)),
        ("cifar10", (5 * CIFAR_IMAGES, CIFAR_IMAGES), (3, 32, 32)),
    ],
)
def test_a_downloaded_data_set_is_where_the_labs_find_it_and_is_not_fetched_again(
    server: Server, tmp_path: Path, name: str, counts: tuple[int, int], shape: tuple[int, ...]
) -> None:
    folder = tmp_path / "my data"
    done = gpulabs(name, "--to", str(folder))
    assert done.exit_code == 0, done.output
    assert f"{name} is complete in {folder / data.SOURCES[name].folder}" in done.stdout
    assert "100%" in done.stderr, "torchvision shows how far it is"
    for split, count in zip(("train", "test"), counts, strict=True):
        images, _ = data.load(name, split=split, data_dir=folder).tensors  # type: ignore[arg-type]
        assert tuple(images.shape) == (count, *shape)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    requested = len(server.requested)
    assert requested > 0
    assert gpulabs(name, "--to", str(folder)).exit_code == 0
    assert len(server.requested) == requested


def test_without_to_it_goes_to_the_folder_that_the_variable_names(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path / "data"))
    assert gpulabs("mnist").exit_code == 0
    assert len(data.load("mnist")) == TRAIN


def _is_one_error(done: Result, *words: str) -> None:
    assert done.exit_code == 1, done.output
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.output
    for word in ("mnist", "gpulabs data download mnist --to DIR", "--data-dir", data.DATA_VARIABLE, *words):
        assert word in error


def test_a_file_with_another_checksum_is_refused_and_nothing_is_left(server: Server, tmp_path: Path) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    server.files[name] = gzip.compress(b"something else")
    _is_one_error(gpulabs("mnist", "--to", str(tmp_path)), "corrupted", name)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_is_one_error_that_names_the_reason(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening: whoever connects is refused
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{nobody.getsockname()[1]}/"] * 2)
        _is_one_error(gpulabs("mnist", "--to", str(tmp_path)), "refused", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_falls_silent_is_not_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.stalls = True
    monkeypatch.setattr(data, "SILENCE_SECONDS", 0.2)
    before = socket.getdefaulttimeout()
    _is_one_error(gpulabs("mnist", "--to", str(tmp_path)), "timed out")
    assert socket.getdefaulttimeout() == before
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _is_one_error(gpulabs("mnist", "--to", str(tmp_path / "file" / "data")), "Not a directory")


@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.night)])
def test_an_interrupted_download_leaves_nothing_behind(server: Server, tmp_path: Path, number: signal.Signals) -> None:
    server.stalls = True
    program = (
        "import signal, sys; from torchvision import datasets; from grader.cli import app\n"
        # Whoever starts pytest in the background has this signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "datasets.MNIST.mirrors = [sys.argv.pop(1)]; app()"
    )
    folder = tmp_path / "data"
    command = [sys.executable, "-c", program, server.address, "data", "download", "mnist", "--to", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        ends = time.monotonic() + LIMIT_SECONDS
        # The first request only asks where the address leads; the file appears with the second.
        while not list(folder.glob(".mnist-*/MNIST/raw/*.gz")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < ends
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("name", "reason"), [("digits", "part of scikit-learn"), ("imagenet", "no data set")])
def test_what_cannot_be_downloaded_is_refused_with_what_can(tmp_path: Path, name: str, reason: str) -> None:
    done = gpulabs(name, "--to", str(tmp_path))
    assert done.exit_code == 2
    assert reason in done.stderr
    assert all(known in done.stderr for known in data.SOURCES)
    with pytest.raises(data.DatasetError, match=name):
        data.download(name, tmp_path)


def test_fashion_mnist_of_debians_package_needs_no_network(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in FILES:
        (package / f"{name}.gz").write_bytes(server.files[f"{name}.gz"])
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", package)
    assert gpulabs("fashion-mnist", "--to", str(tmp_path / "data")).exit_code == 0
    assert server.requested == []


def test_a_damaged_data_set_is_named_and_not_replaced(server: Server, tmp_path: Path) -> None:
    assert gpulabs("mnist", "--to", str(tmp_path)).exit_code == 0
    damaged = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    done = gpulabs("mnist", "--to", str(tmp_path))
    assert done.exit_code == 1
    assert "incomplete or damaged" in done.stderr
    assert damaged.exists()


@pytest.mark.parametrize("name", data.NAMES)
def test_black_is_what_load_makes_of_a_black_pixel(server: Server, tmp_path: Path, name: str) -> None:
    if name in data.SOURCES:
        assert gpulabs(name, "--to", str(tmp_path)).exit_code == 0
    images, _ = data.load(name, data_dir=tmp_path).tensors
    darkest = images.amin(dim=(0, 2, 3)).view(-1, 1, 1)
    assert torch.allclose(data.black(name), darkest, atol=1e-6)
