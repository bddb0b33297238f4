"""What a GPU and its host can do, read from TOML. Pure Python: importing this never imports torch.

Not here: what an operation costs on such a GPU (`vgpu.device.cost`).
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vgpu.device.errors import SpecError

_BUILT_IN = Path(__file__).with_name("gpus.toml")
# What only NVML reports of a board; a figure that is missing is "Not Supported" there.
MONITORING = (
    "memory_clock_megahertz", "idle_clock_megahertz", "idle_memory_clock_megahertz", "minimum_power_watts",
    "maximum_celsius", "slowdown_celsius", "shutdown_celsius", "pcie_generation", "memory_bus_bits", "cores", "nvlinks",
    "idle_performance_state",
)  # fmt: skip
_PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """The computer around the GPU. Rates in FLOP/s and bytes/s, times in seconds.

    `launch_seconds` is an elementwise operation's call, and `call_seconds` what calls of some kinds add to it
    ("product", "convolution", "backward", ...), on the host that they were measured on; a card that usually
    sits in a slower host says so by its own `launch_seconds`. An optimizer's step takes `optimizer_tensor_seconds` for
    each tensor, before its kernels, autocast `autocast_seconds` for each cast, and an `nn.Module` `module_seconds` for
    each call.
    """

    title: str
    peak_flops: Mapping[str, float]
    product_efficiency_ratio: float
    bandwidth_bytes_per_second: float
    operation_seconds: float
    clock_read_seconds: float
    launch_seconds: float
    optimizer_tensor_seconds: float
    autocast_seconds: float
    module_seconds: float
    call_seconds: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """What joins several GPUs: bytes/s of each GPU in each direction, as achieved, and seconds of one hop.

    A collective takes `start_seconds` before its first hop. Where a switch adds (NVLink SHARP),
    `switch_bytes_per_second` is the bus bandwidth of such an all-reduce; 0 where there is none.
    """

    name: str
    title: str
    bandwidth_bytes_per_second: float
    latency_seconds: float
    start_seconds: float = 0.0
    switch_bytes_per_second: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One GPU. `peak_flops` maps a precision ("float32", "tf32", "float16", ...) to dense FLOP/s.

    `memory_bytes` is what `torch.cuda.get_device_properties().total_memory` reports; `context_bytes` of it are
    taken by the CUDA context. Pairs (`power_watts`, `temperature_celsius`) are idle and fully busy. `interconnect`
    names what joins several of these GPUs; `links` are the interconnects that a file of the user's own describes.
    `sustained_clock_ratio` has, by precision, the share of the boost clock that long products hold within the board's
    power. `l2_bytes_per_second` is how fast an elementwise kernel reads and writes what is in the L2 cache; 0: no
    faster than memory. `monitoring` has what only NVML reports of a board (`MONITORING`).
    """

    name: str
    title: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    context_bytes: int
    peak_flops: Mapping[str, float]
    bandwidth_bytes_per_second: float
    bandwidth_efficiency_ratio: float
    product_efficiency_ratio: float
    launch_seconds: float
    metadata_seconds: float
    minimum_kernel_seconds: float
    synchronize_seconds: float
    context_seconds: float
    blas_handle_seconds: float
    cudnn_handle_seconds: float
    blas_workspace_bytes: int
    pageable_bytes_per_second: float
    pinned_bytes_per_second: float
    transfer_latency_seconds: float
    clock_hertz: float
    power_watts: tuple[float, float]
    temperature_celsius: tuple[float, float]
    driver_version: str
    l2_bytes: int
    interconnect: str
    host: HostSpec
    l2_bytes_per_second: float = 0.0
    sustained_clock_ratio: Mapping[str, float] = field(default_factory=dict)
    monitoring: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, Interconnect] = field(default_factory=dict)

    def peak_tflops(self, dtype: str = "float32") -> float:
        """Dense peak in TFLOPS of a precision; raises SpecError where the GPU has none."""
        if dtype not in self.peak_flops:
            raise SpecError(f"{self.name} has no peak rate for {dtype!r}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[dtype] / 1e12


def list_specs() -> tuple[str, ...]:
    """Names of the built-in GPUs, in the order of the data file."""
    return tuple(_own_tables()["gpu"])


def get_spec(spec: str | os.PathLike[str] | Spec = "T4") -> Spec:
    """A built-in GPU by name, a custom one from a TOML file, or a `Spec` as it is.

    A file holds one `[gpu.NAME]` table in the format of `vgpu/device/gpus.toml`; `base = "T4"` takes every other figure
    from a built-in GPU, an optional `[host]` table changes figures of the host, and `[interconnect.NAME]` tables
    describe links that `interconnect = "NAME"` may name. Raises SpecError.
    """
    if isinstance(spec, Spec):
        return spec
    text = os.fspath(spec)
    if text.endswith(".toml"):
        return _from_file(Path(text))
    names = {name.lower(): name for name in list_specs()}
    if text.lower() not in names:
        raise SpecError(f"no GPU named {text!r}; choose one of {', '.join(names.values())}, or give a .toml file")
    return _built_in(names[text.lower()])


def list_interconnects() -> tuple[str, ...]:
    """Names of the built-in interconnects, in the order of the data file."""
    return tuple(_own_tables()["interconnect"])


def get_interconnect(link: str | os.PathLike[str] | Interconnect, spec: Spec | None = None) -> Interconnect:
    """An interconnect by name (of the built-in ones, or of `spec.links`), from a TOML file, or as it is.

    A file holds one `[interconnect.NAME]` table in the format of `vgpu/device/gpus.toml`. Raises SpecError.
    """
    if isinstance(link, Interconnect):
        return link
    text = os.fspath(link)
    if text.endswith(".toml"):
        links = _links(Path(text), _load(Path(text)))
        if len(links) != 1:
            raise SpecError(f"{text}: expected exactly one [interconnect.NAME] table, found {len(links)}")
        return next(iter(links.values()))
    known = {**_links(_BUILT_IN, _own_tables()), **(spec.links if spec is not None else {})}
    names = {name.lower(): name for name in known}
    if text.lower() not in names:
        raise SpecError(f"no interconnect named {text!r}; choose one of {', '.join(known)}, or give a .toml file")
    return known[names[text.lower()]]


def _links(path: Path, data: Mapping[str, Any]) -> dict[str, Interconnect]:
    tables = data.get("interconnect", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SpecError(f"{path}: interconnects are tables: [interconnect.NAME]")
    return {
        name: Interconnect(name=name, **_checked(path, f"interconnect.{name}", Interconnect, table, extra=("name",)))
        for name, table in tables.items()
    }


@functools.cache
def _built_in(name: str) -> Spec:
    data = _own_tables()
    return _build(_BUILT_IN, name, _inherit(_BUILT_IN, name, data["gpu"]), data["host"], {})


def _from_file(path: Path) -> Spec:
    data = _load(path)
    gpus = data.get("gpu")
    if not isinstance(gpus, dict) or len(gpus) != 1:
        raise SpecError(f"{path}: expected exactly one [gpu.NAME] table, found {len(gpus or {})}")
    ((name, table),) = gpus.items()
    if not isinstance(table, dict):
        raise SpecError(f"{path}: [gpu.{name}] must be a table")
    if "base" in table:
        table = _merge(_inherit(_BUILT_IN, str(table["base"]), _own_tables()["gpu"], path), table)
    host = _merge(_own_tables()["host"], data.get("host", {}))
    return _build(path, name, table, host, _links(path, data))


def _inherit(path: Path, name: str, gpus: Mapping[str, Any], asked_by: Path | None = None) -> dict[str, Any]:
    if name not in gpus:
        raise SpecError(f"{asked_by or path}: base = {name!r} is not a built-in GPU ({', '.join(gpus)})")
    table = dict(gpus[name])
    return _merge(_inherit(path, table["base"], gpus), table) if "base" in table else table


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for key in ("peak_flops", "sustained_clock_ratio", "call_seconds", "monitoring", "sources"):
        if isinstance(below.get(key), dict) and isinstance(above.get(key), dict):
            merged[key] = {**below[key], **above[key]}
    merged.pop("base", None)
    return merged


@functools.cache
def _own_tables() -> Mapping[str, Any]:
    """What the data file of this library says; nobody changes it."""
    return MappingProxyType(_load(_BUILT_IN))


def _load(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not valid TOML: {error}") from None
    if data.get("schema", 1) != 1:
        raise SpecError(f"{path}: schema = {data['schema']!r}; this version reads schema 1")
    return data


def _build(
    path: Path, name: str, table: Mapping[str, Any], host: Mapping[str, Any], links: Mapping[str, Interconnect]
) -> Spec:
    host_values = _checked(path, "host", HostSpec, host, extra=())
    values = _checked(path, f"gpu.{name}", Spec, table, extra=("name", "host", "links"))
    spec = Spec(name=name, host=HostSpec(**host_values), links=MappingProxyType(dict(links)), **values)
    if not spec.host.launch_seconds:
        raise SpecError(f"{path}: [host] launch_seconds must be positive: a card's own is divided by it")
    if spec.context_bytes >= spec.memory_bytes:
        raise SpecError(f"{path}: [gpu.{name}] context_bytes must be smaller than memory_bytes")
    try:
        get_interconnect(spec.interconnect, spec)
    except SpecError as error:
        raise SpecError(f"{path}: [gpu.{name}] interconnect: {error}") from None
    return spec


def _checked(
    path: Path, where: str, kind: type[Any], table: Mapping[str, Any], extra: tuple[str, ...]
) -> dict[str, Any]:
    """The table's values converted to the field types of `kind`, or a SpecError that names file, key and cause."""
    by_name = {item.name: item for item in fields(kind) if item.name not in extra}
    unknown = sorted(set(table) - set(by_name))
    if unknown:
        raise SpecError(f"{path}: [{where}] does not know {unknown[0]!r}; it knows {', '.join(by_name)}")
    missing = [
        name
        for name, item in by_name.items()
        if name not in table and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise SpecError(f"{path}: [{where}] lacks {', '.join(missing)}")
    return {name: _convert(path, f"[{where}] {name}", str(by_name[name].type), table[name]) for name in table}


def _convert(path: Path, where: str, kind: str, value: Any) -> Any:
    def fail(expected: str) -> SpecError:
        return SpecError(f"{path}: {where} = {value!r}: expected {expected}")

    def number(item: Any, *, whole: bool = False) -> bool:
        return isinstance(item, int if whole else (int, float)) and not isinstance(item, bool) and 0 <= item < 1e30

    if kind == "str":
        if not isinstance(value, str) or not value:
            raise fail("a text")
        return value
    if kind == "Mapping[str, str]":
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise fail("a table of texts")
        return MappingProxyType(dict(value))
    if kind == "Mapping[str, float]":
        if not isinstance(value, dict) or not all(number(item) and item > 0 for item in value.values()):
            raise fail("a table of positive numbers")
        if where.endswith("call_seconds"):
            return MappingProxyType({key: float(item) for key, item in value.items()})
        if where.endswith("_ratio"):
            if set(value) - set(_PRECISIONS) or max(value.values(), default=0) > 1:
                raise fail(f"ratios of at most 1 for some of {', '.join(_PRECISIONS)}")
        elif "float32" not in value or set(value) - set(_PRECISIONS):
            raise fail(f"float32 and others of {', '.join(_PRECISIONS)}")
        return MappingProxyType({key: float(item) for key, item in value.items()})
    if kind == "Mapping[str, int]":
        if not isinstance(value, dict) or not all(number(item, whole=True) for item in value.values()):
            raise fail("a table of whole numbers")
        if set(value) - set(MONITORING):
            raise fail(f"some of {', '.join(MONITORING)}")
        return MappingProxyType(dict(value))
    if kind.startswith("tuple"):
        whole = "int" in kind
        if not isinstance(value, list) or len(value) != 2 or not all(number(item, whole=whole) for item in value):
            raise fail("a list of two numbers")
        return tuple(value)
    if kind == "int":
        if not number(value, whole=True) or (value == 0 and "workspace" not in where):
            raise fail("a positive whole number")
        return value
    if not number(value) or (value == 0 and not where.endswith("_seconds")):
        raise fail("a positive number")
    if where.endswith("_ratio") and value > 1:
        raise fail("a ratio of at most 1")
    return float(value)
