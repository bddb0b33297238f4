"""Given: trains a small CNN on MNIST and notes what happened, for the checklist. Nothing to write here.

Runs inside the container, alone: it needs what is in requirements.txt and nothing else of the course. Writes the model
and `run.json` to the model directory.
"""

import argparse
import hashlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import datasets

MEAN, STANDARD_DEVIATION = 0.1307, 0.3081
"""Of the training images of MNIST, as in PyTorch's own example."""
SAMPLE_SECONDS = 0.1
NVML_SECONDS = 1.0
"""NVML tells the utilization of the last sixth of a second to a second, as the GPU's model wants it: so long after the
beginning it would still speak of the time before."""
MODEL_FILE = "mnist_cnn.safetensors"


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


def load(data_dir: Path, device: torch.device, download: bool) -> tuple[Tensor, Tensor]:
    """All images and labels, on the device: 47 MB, and a loader that fetches them one by one would starve the GPU."""
    mnist = datasets.MNIST(str(data_dir), train=True, download=download)
    images = mnist.data.to(device).unsqueeze(1).float().div(255).sub(MEAN).div(STANDARD_DEVIATION)
    return images, mnist.targets.to(device)


class Utilization:
    """Samples how busy the GPU is, in the background; `ratios` is empty where nobody can tell."""

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


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train and save; what the checklist wants to know."""
    torch.manual_seed(0)
    images, labels = load(options.data_dir, device, not options.offline)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses = []
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
            print(f"epoch {epoch + 1}/{options.epochs}: loss {losses[-1]:.4f}, {time.perf_counter() - started:.1f} s")
    seconds = time.perf_counter() - started
    parameters = {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
    path = options.model_dir / MODEL_FILE
    save_file(parameters, path)
    content = path.read_bytes()
    busy = utilization.ratios
    return {
        "parameter_devices": sorted({str(tensor.device) for tensor in model.state_dict().values()}),
        "losses": losses,
        "seconds": seconds,
        "utilization_ratio": sum(busy) / len(busy) if busy else None,
        "utilization_samples": len(busy),
        "model_file": MODEL_FILE,
        "model_bytes": len(content),
        "model_sha256": hashlib.sha256(content).hexdigest(),
    }


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a small CNN on MNIST.")
    parser.add_argument("--data-dir", type=Path, default=Path("/data"), help="where MNIST lies, or is downloaded to")
    parser.add_argument("--model-dir", type=Path, default=Path("/models"), help="where model and run.json go")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--amp", action="store_true", help="bfloat16 where autocast allows it")
    parser.add_argument("--offline", action="store_true", help="never download")
    options = parser.parse_args(argv)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    run: dict[str, Any] = {"schema": 1, **surroundings(device), "batch_size": options.batch_size, "errors": []}
    print(f"device: {run['device_name']}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run.update(train(options, device))
        except (RuntimeError, OSError) as error:  # also every CUDA error
            run["errors"] = [f"{type(error).__name__}: {error}"]
            print(run["errors"][0], file=sys.stderr)
    run["warnings"] = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    (options.model_dir / "run.json").write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")
    return 1 if run["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
