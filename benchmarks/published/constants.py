"""The constants that were fitted to the figures, each with what one would say without any: for cross-validation.

A constant can be scaled for a while; nothing else is changed. Not here: what comes of it
(`benchmarks.published.cross_validation`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from benchmarks.published.figures import Figure
from vgpu.device import attention_cost, convolution_cost, cost, spec
from vgpu.runtime.operations import traffic

Scaled = Callable[[float], AbstractContextManager[None]]


@dataclass(frozen=True)
class Constant:
    """`prior`: what theory or a data sheet says, as a multiple of the fitted value.

    `gpu` (the beginning of its name), `workloads` and `source` tell which figures it can touch; empty: any.
    """

    name: str
    prior: float
    scaled: Scaled
    gpu: str = ""
    workloads: tuple[str, ...] = ()
    source: str = ""

    def touches(self, figure: Figure) -> bool:
        """Whether the figure can depend on it at all."""
        return (
            figure.gpu.startswith(self.gpu)
            and (not self.workloads or figure.workload in self.workloads)
            and figure.source.startswith(self.source)
        )


_FUSED, _RING = ("sdpa", "gpt_tokens"), ("allreduce_busbw",)
# Windows of 3 x 3, and depthwise ones.
_CNN = ("cnn_train", "cnn_infer", "cnn_evaluate", "yolov5_infer")
# Forward alone is launched faster than it runs.
_CALLED = ("product", "convolution", "norm")
# The others keep the device busier than the host.
_LAUNCHED = ("cnn_infer", "cnn_evaluate", "yolov5_infer", "vit_infer", "bert_infer", "matmul")


def _attribute(module: Any, name: str) -> tuple[float, Scaled]:
    value = float(getattr(module, name))

    @contextlib.contextmanager
    def scaled(factor: float) -> Iterator[None]:
        setattr(module, name, value * factor)
        try:
            yield
        finally:
            setattr(module, name, value)

    return value, scaled


def _entry(table: MutableMapping[Any, Any], key: Any, place: int | None = None) -> tuple[float, Scaled]:
    """A number in a table, or in a pair in it."""
    before = table[key]
    value = float(before if place is None else before[place])

    @contextlib.contextmanager
    def scaled(factor: float) -> Iterator[None]:
        if place is None:
            table[key] = value * factor
        else:
            table[key] = tuple(number * factor if index == place else number for index, number in enumerate(before))
        spec._built_in.cache_clear()
        try:
            yield
        finally:
            table[key] = before
            spec._built_in.cache_clear()

    return value, scaled


def _of_gpu(name: str, *path: str) -> tuple[float, Scaled]:
    table: Any = spec._own_tables()["gpu"][name]
    for key in path[:-1]:
        table = table[key]
    return _entry(table, path[-1])


def _constant(
    name: str, prior: float, entry: tuple[float, Scaled], gpu: str = "", workloads: tuple[str, ...] = ()
) -> Constant:
    value, scaled = entry
    return Constant(name, prior / value, scaled, gpu, workloads)


def pace_of_host(source: str) -> Constant:
    """How slow the host of one source is, compared with the usual one: all calls, by one factor.

    Where a source's many figures show that, they tell the proportions of calls, and not that its host is slow.
    """
    host = spec._own_tables()["host"]
    calls = host["call_seconds"]

    @contextlib.contextmanager
    def scaled(factor: float) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_entry(host, "module_seconds")[1](factor))
            for kind in calls:
                stack.enter_context(_entry(calls, kind)[1](factor))
            yield

    return Constant(f"pace of the host, {source}", 1.0, scaled, workloads=_LAUNCHED, source=source)


def fitted() -> list[Constant]:
    """All of them. A prior of 1 is a kernel that reaches what a plain copy, or the data sheet, does."""
    tables: Mapping[str, Any] = spec._own_tables()
    calls, links = tables["host"]["call_seconds"], tables["interconnect"]
    launch = 5e-6
    constants = [
        _constant("cycles of softmax", 0.5, _attribute(traffic, "_SOFTMAX_CYCLES")),
        _constant("cycles of layer norm", 0.25, _attribute(traffic, "_LAYER_NORM_CYCLES")),
        _constant("cycles of dropout", 0.5, _attribute(traffic, "_DROPOUT_CYCLES")),
        _constant("bytes lost by broadcasts", 1.0, _attribute(traffic, "_BROADCAST_BYTES")),
        _constant("bytes lost by transpositions", 2.0, _attribute(traffic, "_TRANSPOSED_BYTES")),
        _constant("depth of a product's end", 16.0, _entry(cost.EPILOGUE_DEPTH, "others")),
        _constant("gain of Winograd, 2 x 2", 2.25, _entry(convolution_cost.WINOGRAD_GAIN, "2 x 2"), workloads=_CNN),
        _constant("gain of Winograd, 4 x 4", 4.0, _entry(convolution_cost.WINOGRAD_GAIN, "4 x 4"), workloads=_CNN),
        _constant(
            "depthwise convolutions, 16 bits", 0.15, _entry(convolution_cost.DEPTHWISE_RATIO, "16 bits"), workloads=_CNN
        ),
        _constant(
            "depthwise convolutions, NHWC", 0.15, _entry(convolution_cost.DEPTHWISE_RATIO, "NHWC"), workloads=_CNN
        ),
        _constant("cycles of layouts", 0.5, _attribute(convolution_cost, "LAYOUT_CYCLES")),
        _constant("rows of attention", 64.0, _attribute(attention_cost, "_ATTENTION_ROWS"), workloads=_FUSED),
        _constant("rows of causal attention", 128.0, _attribute(attention_cost, "_CAUSAL_ROWS"), workloads=_FUSED),
        _constant("attention backward", 1.0, _attribute(attention_cost, "_ATTENTION_BACKWARD"), workloads=_FUSED),
        _constant(
            "exponentials overlapped", 1.0, _attribute(attention_cost, "_OVERLAPPED_EXPONENTIALS"), workloads=_FUSED
        ),
    ]
    for kind in ("cuda cores", "tensor cores"):
        constants.append(_constant(f"a tile's wait, {kind}", 1e-6, _entry(cost.FILL_SECONDS, kind)))
        fill = _entry(convolution_cost.FILL_SECONDS, kind)
        constants.append(_constant(f"a convolution's tile's wait, {kind}", 1e-6, fill))
    for gpu in ("T4", "A100-40GB", "H100"):
        constants.append(_constant(f"{gpu}: memory", 0.85, _of_gpu(gpu, "bandwidth_efficiency_ratio"), gpu[:4]))
        constants.append(_constant(f"{gpu}: products", 0.85, _of_gpu(gpu, "product_efficiency_ratio"), gpu[:4]))
        if gpu == "H100":  # what the same chip does in an H200 is published
            cached = tables["gpu"]["H200"]["l2_bytes_per_second"]
            constants.append(_constant(f"{gpu}: L2 cache", cached, _of_gpu(gpu, "l2_bytes_per_second"), gpu))
        for precision in tables["gpu"][gpu]["sustained_clock_ratio"]:
            entry = _of_gpu(gpu, "sustained_clock_ratio", precision)
            constants.append(_constant(f"{gpu}: clock in {precision}", 1.0, entry, gpu[:4]))
    constants += [_constant(f"call of {kind}", launch, _entry(calls, kind), workloads=_LAUNCHED) for kind in _CALLED]
    module = _entry(tables["host"], "module_seconds")
    constants.append(_constant("call of a module", launch, module, workloads=_LAUNCHED))
    for gpu in ("T4", "V100", "A100-40GB"):
        slow = _of_gpu(gpu, "launch_seconds")
        constants.append(_constant(f"{gpu}: host", tables["host"]["launch_seconds"], slow, gpu[:4], _LAUNCHED))
    constants += [
        _constant(
            "NVLink 3: bandwidth", 2.4e11, _entry(links["nvlink3"], "bandwidth_bytes_per_second"), workloads=_RING
        ),
        _constant("NVLink 3: latency", 2e-6, _entry(links["nvlink3"], "latency_seconds"), workloads=_RING),
        _constant("NVLink 3: start", 2e-6, _entry(links["nvlink3"], "start_seconds"), workloads=_RING),
    ]
    return constants
