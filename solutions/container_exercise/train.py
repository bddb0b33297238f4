"""Given: trains a small CNN on MNIST and records what happened, for the checklist. Nothing to write here.

Runs inside the container, alone: it needs what is in requirements.txt and nothing else of the course. Writes the model,
as `.pth` and as `.safetensors`, and a record of the run to the model directory. Runs on the GPU, on the CPU and on the
course's virtual GPU write files of different names, so all of them can be on one volume.

    python train.py                                         train
    python train.py --evaluate /models/mnist_cnn.pth        load a saved model and count right answers
"""

import argparse
import hashlib
import json
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision import datasets

MEAN, STANDARD_DEVIATION = 0.1307, 0.3081
"""Of the training images of MNIST, as in PyTorch's own example."""
SAMPLE_SECONDS = 0.1
NVML_SECONDS = 1.0
"""NVML reports the utilization of the last sixth of a second to a second, depending on the GPU: so long after the
beginning it would still speak of the time before."""
MODEL_NAME = "mnist_cnn"
SUFFIXES = (".pth", ".safetensors")
MIB = 2**20


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def save(parameters: dict[str, Tensor], path: Path) -> None:
    """Write the parameters in the format that the suffix names."""
    if path.suffix == ".safetensors":
        save_file(parameters, path)
    else:
        torch.save(parameters, path)
    # safetensors lets only the owner read its files; the checklist and a server read them as another user.
    path.chmod(0o644)


def load_parameters(path: Path) -> dict[str, Tensor]:
    """Read what `save` wrote.

    A `.pth` is a pickle, and a pickle can run any program while it is read. `weights_only=True` reads tensors and
    refuses everything else. A `.safetensors` file holds nothing but tensors.
    """
    if path.suffix == ".safetensors":
        return load_file(path)
    parameters: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return parameters


def save_model(model: nn.Module, model_dir: Path, name: str) -> list[dict[str, Any]]:
    """Save the model in both formats and read each file again, as the program that serves it will."""
    parameters = {key: tensor.detach().contiguous().cpu() for key, tensor in model.state_dict().items()}
    files = []
    for suffix in SUFFIXES:
        path = model_dir / f"{name}{suffix}"
        save(parameters, path)
        loaded = load_parameters(path)
        same = loaded.keys() == parameters.keys() and all(torch.equal(loaded[key], parameters[key]) for key in loaded)
        content = path.read_bytes()
        files.append(
            {
                "file": path.name,
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "loads_again": same,
            }
        )
        print(f"saved {path}, {len(content)} bytes")
    return files


def load(data_dir: Path, device: torch.device, download: bool, train: bool = True) -> tuple[Tensor, Tensor]:
    """All images and labels, on the device: 47 MB, and a loader that fetches them one by one would starve the GPU."""
    mnist = datasets.MNIST(str(data_dir), train=train, download=download)
    images = mnist.data.to(device).unsqueeze(1).float().div(255).sub(MEAN).div(STANDARD_DEVIATION)
    return images, mnist.targets.to(device)


class Utilization:
    """Samples how busy the GPU is, in the background; `ratios` is empty on a machine without NVML."""

    def __init__(self, device: torch.device) -> None:
        self.ratios: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(device,), daemon=True)

    def __enter__(self) -> "Utilization":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self, device: torch.device) -> None:
        if device.type != "cuda":
            return
        try:
            pynvml.nvmlInit()
            # By UUID: NVML's numbers know nothing of CUDA_VISIBLE_DEVICES.
            uuid = torch.cuda.get_device_properties(device).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            pause = NVML_SECONDS
            while not self._stop.wait(pause):
                self.ratios.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
                pause = SAMPLE_SECONDS
        except (pynvml.NVMLError, AttributeError) as error:
            warnings.warn(f"the GPU's utilization cannot be read: {error}", stacklevel=2)


def gpu_memory(device: torch.device) -> dict[str, int] | None:
    """The GPU's memory in bytes: what tensors hold, what PyTorch keeps for them, and the most that tensors held."""
    if device.type != "cuda":
        return None
    return {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "peak_bytes": torch.cuda.max_memory_allocated(device),
    }


def memory_line(memory: dict[str, int] | None) -> str:
    """The part of a printed line that shows the GPU's memory; empty on the CPU."""
    if memory is None:
        return ""
    allocated, reserved, peak = (memory[name] / MIB for name in ("allocated_bytes", "reserved_bytes", "peak_bytes"))
    return f"; GPU memory in MiB: {allocated:.1f} allocated, {reserved:.1f} reserved, peak {peak:.1f}"


def train(options: argparse.Namespace, device: torch.device, name: str) -> dict[str, Any]:
    """Train and save; return what the checklist needs."""
    torch.manual_seed(0)
    images, labels = load(options.data_dir, device, not options.offline)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses = []
    memory = []
    if device.type == "cuda":
        print(f"before training{memory_line(gpu_memory(device))}")
    started = time.perf_counter()
    with Utilization(device) as utilization:
        for epoch in range(options.epochs):
            total = torch.zeros((), device=device)
            for batch in torch.randperm(len(labels), device=device).split(options.batch_size):
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.amp):
                    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(batch)
            losses.append(total.item() / len(labels))
            memory.append(gpu_memory(device))
            elapsed = time.perf_counter() - started
            line = f"epoch {epoch + 1}/{options.epochs}: loss {losses[-1]:.4f}, {elapsed:.1f} s"
            print(line + memory_line(memory[-1]))
    seconds = time.perf_counter() - started
    busy = utilization.ratios
    return {
        "parameter_devices": sorted({str(tensor.device) for tensor in model.state_dict().values()}),
        "images": len(labels),
        "epochs": options.epochs,
        "losses": losses,
        "seconds": seconds,
        "epoch_seconds": seconds / options.epochs,
        "memory": memory if device.type == "cuda" else None,
        "utilization_ratio": sum(busy) / len(busy) if busy else None,
        "utilization_samples": len(busy),
        "models": save_model(model, options.model_dir, name),
    }


def evaluate(options: argparse.Namespace, device: torch.device) -> float:
    """The share of MNIST's test images that a saved model, `.pth` or `.safetensors`, reads right."""
    images, labels = load(options.data_dir, device, not options.offline, train=False)
    model = make_model()
    model.load_state_dict(load_parameters(options.evaluate))
    model.to(device).eval()
    with torch.inference_mode():
        right = sum(
            int((model(part).argmax(dim=1) == answers).sum())
            for part, answers in zip(images.split(1000), labels.split(1000), strict=True)
        )
    return right / len(labels)


def file_suffix(run: dict[str, Any]) -> str:
    """What distinguishes the files of this run: nothing for a GPU, "-cpu", or "-virtual"."""
    if run["simulated"]:
        return "-virtual"
    return "" if run["device"].startswith("cuda") else "-cpu"


def surroundings(device: torch.device) -> dict[str, Any]:
    """Where the run takes place."""
    cuda = device.type == "cuda"
    return {
        "cuda_available": torch.cuda.is_available(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if cuda else "CPU",
        # The course's virtual GPU, under which this program can be tried: python -m vgpu train.py
        "simulated": torch.cuda.is_available.__module__.startswith("vgpu."),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _print_evaluation(options: argparse.Namespace, device: torch.device) -> int:
    try:
        share = evaluate(options, device)
    except pickle.UnpicklingError:  # its own message advises to read the file unsafely
        print(f"error: {options.evaluate} holds more than tensors, or is damaged: it was not read", file=sys.stderr)
        return 1
    except (OSError, RuntimeError, SafetensorError) as error:
        print(f"error: {options.evaluate} cannot be evaluated: {error}", file=sys.stderr)
        return 1
    print(f"{options.evaluate}: {share:.2%} of the test images are right")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST.")
    parser.add_argument("--data-dir", type=Path, default=Path("/data"), help="where MNIST is, or is downloaded to")
    parser.add_argument("--model-dir", type=Path, default=Path("/models"), help="where the model and the record go")
    parser.add_argument("--epochs", type=_positive, default=5)
    parser.add_argument("--batch-size", type=_positive, default=64)
    parser.add_argument("--amp", action="store_true", help="bfloat16 where autocast allows it")
    parser.add_argument("--offline", action="store_true", help="never download")
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="a saved model: count its right answers instead")
    options = parser.parse_args(argv)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if options.evaluate:
        return _print_evaluation(options, device)
    run: dict[str, Any] = {
        "schema": 2,
        **surroundings(device),
        "batch_size": options.batch_size,
        "amp": options.amp,
        "errors": [],
    }
    suffix = file_suffix(run)
    print(f"device: {run['device_name']}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run.update(train(options, device, MODEL_NAME + suffix))
        except (RuntimeError, OSError) as error:  # also every CUDA error
            run["errors"] = [f"{type(error).__name__}: {error}"]
            print(run["errors"][0], file=sys.stderr)
    run["warnings"] = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    (options.model_dir / f"run{suffix}.json").write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    return 1 if run["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
