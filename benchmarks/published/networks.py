"""Convolutional networks of torchvision, trained and evaluated."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.published.timing import dtype_of, is_amp, wall_seconds

Sizes = Mapping[str, Any]
Step = Callable[[], object]


def _model(name: str, layout: torch.memory_format) -> nn.Module:
    from torchvision import models  # not at the top: it costs seconds

    with torch.device("cuda"):
        if name == "resnext101_32x4d":
            model = models.ResNet(models.resnet.Bottleneck, [3, 4, 23, 3], groups=32, width_per_group=4)
        else:
            model = getattr(models, name)()
    made: nn.Module = model.to(memory_format=layout)
    return made


def _images(sizes: Sizes, layout: torch.memory_format) -> torch.Tensor:
    edge = sizes.get("size", 224)
    return torch.randn(sizes["batch"], 3, edge, edge, device="cuda").to(memory_format=layout)


def _layout(sizes: Sizes) -> torch.memory_format:
    return torch.channels_last if sizes.get("nhwc") else torch.contiguous_format


def training_step(sizes: Sizes, precision: str, wrap: Callable[[nn.Module], nn.Module] = lambda made: made) -> Step:
    """One step with SGD, label smoothing and, in 16 bits, autocast with a scaler (NVIDIA/DeepLearningExamples).

    Where `sizes` says "plain", the program has neither smoothing nor scaler.
    """
    layout = _layout(sizes)
    model = wrap(_model(sizes.get("model_name", sizes["model"]), layout))
    images, labels = _images(sizes, layout), torch.zeros(sizes["batch"], dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    smoothing = 0.0 if sizes.get("plain") else 0.1
    scaler = torch.amp.GradScaler("cuda", enabled=is_amp(precision) and not sizes.get("plain"))

    def step() -> None:
        with torch.autocast("cuda", dtype_of(precision), enabled=is_amp(precision)):
            loss = functional.cross_entropy(model(images), labels, label_smoothing=smoothing)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def cnn_train(sizes: Sizes, precision: str) -> float:
    """Images per second in training."""
    return float(sizes["batch"] / wall_seconds(training_step(sizes, precision)))


def cnn_infer(sizes: Sizes, precision: str) -> float:
    """Images per second in evaluation, or ms per batch where `metric` says so."""
    layout = _layout(sizes)
    model = _model(sizes["model"], layout).eval()
    images = _images(sizes, layout)

    def call() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype_of(precision), enabled=is_amp(precision)):
            model(images)

    seconds = wall_seconds(call, 10)
    return 1e3 * seconds if sizes.get("metric") == "ms" else float(sizes["batch"] / seconds)


def cnn_evaluate(sizes: Sizes, precision: str) -> float:
    """Images per second in evaluation with loss and accuracy, read after each batch (NVIDIA/DeepLearningExamples)."""
    layout = _layout(sizes)
    model = _model(sizes["model"], layout).eval()
    images, labels = _images(sizes, layout), torch.zeros(sizes["batch"], dtype=torch.long, device="cuda")

    def call() -> None:
        with torch.no_grad(), torch.autocast("cuda", dtype_of(precision), enabled=is_amp(precision)):
            output = model(images)
            loss = functional.cross_entropy(output, labels)
        right = output.topk(5, 1)[1].t().eq(labels.view(1, -1))
        for best in (1, 5):
            right[:best].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / len(labels)).item()
        loss.item()
        torch.cuda.synchronize()

    return float(sizes["batch"] / wall_seconds(call, 10))
