"""YOLOv5, evaluated: five sizes, which differ in how many layers there are, on one host."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.published.timing import wall_seconds

# How many times as deep and as wide as the large one (models/yolov5*.yaml of v6.0).
_SCALES = {"n": (0.33, 0.25), "s": (0.33, 0.50), "m": (0.67, 0.75), "l": (1.00, 1.00), "x": (1.33, 1.25)}
_CLASSES, _ANCHORS = 80, 3


class Convolution(nn.Module):
    """A convolution with the norm folded in, and SiLU in place."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None) -> None:
        super().__init__()
        around = kernel // 2 if padding is None else padding
        self.conv, self.act = nn.Conv2d(inputs, outputs, kernel, stride, around), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.act(self.conv(x))
        return activated


class Bottleneck(nn.Module):
    """1 x 1, then 3 x 3, added to what came in where the backbone asks for it."""

    def __init__(self, width: int, adds: bool) -> None:
        super().__init__()
        self.first, self.second, self.adds = Convolution(width, width), Convolution(width, width, 3), adds

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.first(x))
        return x + made if self.adds else made


class Stage(nn.Module):
    """Half of the channels through the bottlenecks, half past them (C3)."""

    def __init__(self, inputs: int, outputs: int, count: int, adds: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.through, self.past = Convolution(inputs, half), Convolution(inputs, half)
        self.bottlenecks = nn.Sequential(*(Bottleneck(half, adds) for _ in range(count)))
        self.out = Convolution(2 * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(torch.cat((self.bottlenecks(self.through(x)), self.past(x)), 1))
        return made


class Pyramid(nn.Module):
    """Three poolings, one after the other, next to each other (SPPF)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow, self.out = Convolution(width, width // 2), Convolution(2 * width, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.narrow(x)
        once = self.pool(x)
        twice = self.pool(once)
        made: Tensor = self.out(torch.cat((x, once, twice, self.pool(twice)), 1))
        return made


class Boxes(nn.Module):
    """What is found at one resolution, in pixels."""

    def __init__(self, inputs: int, stride: int, edge: int) -> None:
        super().__init__()
        self.conv, self.stride, self.cells = nn.Conv2d(inputs, _ANCHORS * (_CLASSES + 5), 1), stride, edge // stride
        grid = (1, _ANCHORS, self.cells, self.cells, 2)
        self.register_buffer("places", torch.zeros(grid))
        self.register_buffer("anchors", torch.ones(grid))

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x).view(len(x), _ANCHORS, _CLASSES + 5, self.cells, self.cells)
        centre, size, classes = made.permute(0, 1, 3, 4, 2).contiguous().sigmoid().split((2, 2, _CLASSES + 1), 4)
        centre = (centre * 2 + self.places) * self.stride
        size = (size * 2) ** 2 * self.anchors
        return torch.cat((centre, size, classes), 4).view(len(x), -1, _CLASSES + 5)


class YoloV5(nn.Module):
    """`scale` n, s, m, l or x; images of `edge` x `edge` pixels. Out: boxes of (images, boxes, 85)."""

    def __init__(self, scale: str, edge: int) -> None:
        super().__init__()
        deep, wide = _SCALES[scale]

        def count(layers: int) -> int:
            return max(round(layers * deep), 1)

        c64, c128, c256, c512, c1024 = (int(-(-base * wide // 8) * 8) for base in (64, 128, 256, 512, 1024))
        self.to_8 = nn.Sequential(
            Convolution(3, c64, 6, 2, 2),
            Convolution(c64, c128, 3, 2),
            Stage(c128, c128, count(3)),
            Convolution(c128, c256, 3, 2),
            Stage(c256, c256, count(6)),
        )
        self.to_16 = nn.Sequential(Convolution(c256, c512, 3, 2), Stage(c512, c512, count(9)))
        self.to_32 = nn.Sequential(Convolution(c512, c1024, 3, 2), Stage(c1024, c1024, count(3)), Pyramid(c1024))
        self.narrow_32, self.up_16 = Convolution(c1024, c512), Stage(2 * c512, c512, count(3), adds=False)
        self.narrow_16, self.up_8 = Convolution(c512, c256), Stage(2 * c256, c256, count(3), adds=False)
        self.down_16, self.again_16 = Convolution(c256, c256, 3, 2), Stage(2 * c256, c512, count(3), adds=False)
        self.down_32, self.again_32 = Convolution(c512, c512, 3, 2), Stage(2 * c512, c1024, count(3), adds=False)
        self.boxes = nn.ModuleList(Boxes(width, at, edge) for width, at in ((c256, 8), (c512, 16), (c1024, 32)))

    def forward(self, images: Tensor) -> Tensor:
        at_8 = self.to_8(images)
        at_16 = self.to_16(at_8)
        narrow_32 = self.narrow_32(self.to_32(at_16))
        narrow_16 = self.narrow_16(self.up_16(torch.cat((_twice(narrow_32), at_16), 1)))
        out_8 = self.up_8(torch.cat((_twice(narrow_16), at_8), 1))
        out_16 = self.again_16(torch.cat((self.down_16(out_8), narrow_16), 1))
        out_32 = self.again_32(torch.cat((self.down_32(out_16), narrow_32), 1))
        detections = [boxes(x) for boxes, x in zip(self.boxes, (out_8, out_16, out_32), strict=True)]
        return torch.cat(detections, 1)


def _twice(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


def yolov5_infer(sizes: Mapping[str, Any], precision: str) -> float:
    """ms per image in FP16, waited for after each batch, without non-maximum suppression (val.py --task speed)."""
    del precision
    edge, batch = sizes["size"], sizes["batch"]
    with torch.device("cuda"):
        model = YoloV5(sizes["scale"], edge).half().eval()
    images = torch.zeros(batch, 3, edge, edge, device="cuda", dtype=torch.float16)

    def call() -> None:
        with torch.no_grad():
            model(images)
        torch.cuda.synchronize()

    return 1e3 * wall_seconds(call, 10) / float(batch)
