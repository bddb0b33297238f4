"""`--thorough`: minutes of load on every GPU at once, with its clocks, power and temperature over time.

What only shows when a board, its cooling and its power supply are warm. Of products one in each sample is compared with
the first one of all.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pynvml
import torch

from cluster.acceptance.checks import broken
from cluster.acceptance.checks.board import SET_BY_SOMEBODY
from cluster.acceptance.checks.compute import by_model, outlying, peers_grade
from cluster.acceptance.checks.health_diff import HARMFUL, NEAR_CELSIUS, USUAL_CELSIUS
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.nvml import throttle_reasons
from cluster.acceptance.records import Record, against_good
from cluster.acceptance.verdict import Check, Status, Threshold, believable, compared, graded

SAMPLES = 120
"""Over the whole time: one every five seconds of ten minutes."""
KEPT_PACE = Threshold(
    value=0.85,
    unit="of the first quarter's pace",
    relation="at least",
    source="ours: a warm board clocks some percent lower; what falls further has a reason",
)

FEWEST_SAMPLES, HARD_AT_WORK = 10, 2.0
"""Of a sensor that stands still: samples that it takes to say so, and how many times the power before the load."""
SINGLE_FAILS, SINGLE_PASSES, MOST_OF_SINGLE = 0.4, 0.55, 1.5
"""Ours, of the pace of twenty products of the stage `compute`: a board of 70 W loses half of it as it gets warm."""


def measure(context: Context) -> dict[str, Any]:
    """Products without a pause; what NVML says and how fast they were, by time."""
    if not context.options.thorough:
        return {"skipped": "only with --thorough", "asked": True}
    generator = torch.Generator().manual_seed(5)
    dtype = torch.float16 if context.on_gpu else torch.float32
    shape = (context.sizes.rows, context.sizes.depth)
    left = torch.randint(-1, 2, shape, generator=generator).to(context.torch_device, dtype)
    right = torch.randint(-1, 2, shape[::-1], generator=generator).to(context.torch_device, dtype)
    first = left @ right
    context.synchronize()
    seconds = context.options.load_seconds or context.sizes.load_seconds
    every = seconds / SAMPLES
    series: list[dict[str, Any]] = []
    differing = products = 0
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        context.at(f"load, {len(series)} of about {SAMPLES} samples")
        done, since = 0, time.perf_counter()
        while time.perf_counter() - since < every:
            for _ in range(SLOW_FACTOR if context.has_fault("slow") else 1):
                again = left @ right
            context.synchronize()
            done += 1
        pace = done / (time.perf_counter() - since)
        differing += not torch.equal(again, first)
        products += done
        series.append({"seconds": elapsed, "products_per_second": pace, **_sample(context)})
    if context.has_fault("throttles"):
        for sample in series[len(series) // 2 :]:
            sample["throttle_reasons"] = ["hardware_thermal_slowdown"]
    return {"series": series, "products": products, "differing": differing}


def _sample(context: Context) -> dict[str, Any]:
    handle = context.kept.get("handle")
    if handle is None:
        return {}
    asks: dict[str, Callable[[], Any]] = {
        "celsius": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "watts": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "sm_clock_hertz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
        "throttle_reasons": lambda: throttle_reasons(handle),
    }
    sample: dict[str, Any] = {}
    for name, ask in asks.items():
        try:
            sample[name] = ask()
        except pynvml.NVMLError:
            sample[name] = None
    return sample


def judge(records: Sequence[Record], expected: Expectations | None = None) -> list[Check]:
    """Checks of all GPUs under load; none where it was not asked for."""
    if all(record.result("load").get("asked") for record in records):
        return []
    meant = expected is not None and expected.number("gpu", "sm_clock_megahertz") is not None
    checks = broken(records, "load", "gpu")
    there = [record for record in records if record.measured("load")]
    for record in there:
        checks.append(_results(record))
        if record.gpu is not None:
            checks += [_throttling(record, meant=meant), _temperature(record), _kept(record), *_of_single(record)]
    for with_gpu in by_model([record for record in there if record.gpu is not None]).values():
        checks += _peers(with_gpu)
    return checks


def _peers(records: Sequence[Record]) -> list[Check]:
    checks = []
    seconds = [1 / median(_values(record, "products_per_second")) for record in records]
    for record, ratio, far in zip(records, against_good(seconds), outlying(seconds), strict=True):
        status, limit = peers_grade(ratio, far)
        shown = "no other GPU to compare with" if ratio is None else f"{ratio:.2f} times the median of its peers"
        checks.append(
            _check(record, "time against peers", status, shown, "compare clocks, power limit and temperature",
                   measured=ratio, threshold=limit)
        )  # fmt: skip
    return checks


def _of_single(record: Record) -> list[Check]:
    """The load's products are those of another stage, which a cold board works out."""
    product = (record.result("compute").get("products") or {}).get("float16") if record.measured("compute") else None
    if product is None:
        return []
    ratio = median(_values(record, "products_per_second")) * median(product["seconds"])
    fails, passes = (
        Threshold(value=value, unit="of the pace of single products", relation="at least",
                  source="ours: under load a board clocks as low as its power limit and its cooling make it")
        for value in (SINGLE_FAILS, SINGLE_PASSES)
    )  # fmt: skip
    quickest = max(_values(record, "products_per_second")) * median(product["seconds"])
    status, limit = believable(graded(ratio, fails, passes), quickest, MOST_OF_SINGLE, unit=passes.unit)
    remedy = "cooling, power limit and power supply of this board: nvidia-smi -q -d PERFORMANCE,POWER under load"
    return [_check(record, "pace against single products", status, f"{ratio:.2f} of theirs", remedy,
                   measured=ratio, threshold=limit, published=1.0)]  # fmt: skip


def _values(record: Record, name: str) -> list[float]:
    return [sample[name] for sample in record.result("load")["series"] if sample.get(name) is not None]


def _check(record: Record, name: str, status: Status, evidence: str, remedy: str, **more: Any) -> Check:
    return Check(name=f"load: {name}", part="run" if record.gpu is None else "gpu", subject=record.subject,
                 rank=record.rank, status=status, evidence=evidence, remedy=remedy, **more)  # fmt: skip


def _results(record: Record) -> Check:
    result = record.result("load")
    limit = Threshold(value=0, unit="wrong products", relation="at most", source="sums of small integers are exact")
    evidence = f"{result['differing']} of {len(result['series'])} samples of {result['products']} products differ"
    status: Status = "fail" if result["differing"] else "pass" if result["series"] else "unverified"
    remedy = "a GPU that computes wrong under load goes out of service: dcgmi diag -r 3"
    return _check(record, "results", status, evidence, remedy, measured=float(result["differing"]), threshold=limit)


def _throttling(record: Record, *, meant: bool) -> Check:
    samples = [
        sample["throttle_reasons"]
        for sample in record.result("load")["series"]
        if sample.get("throttle_reasons") is not None
    ]
    harmful = [set(reasons) & set(HARMFUL) for reasons in samples]
    names = sorted({reason for reasons in harmful for reason in reasons})
    chosen = [] if meant else sorted({reason for reasons in samples for reason in reasons} & SET_BY_SOMEBODY)
    remedy = "thermal: cooling; power brake, hardware slowdown: power supply and its cables"
    if not samples:
        return _check(record, "throttling", "unverified", "NVML does not report it", remedy, nothing_known=True)
    evidence = f"{sum(map(bool, harmful))} of {len(samples)} samples with harmful reasons: {', '.join(names) or 'none'}"
    evidence += f"; {', '.join(chosen)}" if chosen else ""
    limit = Threshold(value=0, unit="samples", relation="at most", source="NVML's clock event reasons")
    return _check(record, "throttling", "fail" if names else "unverified" if chosen else "pass", evidence, remedy,
                  measured=float(sum(map(bool, harmful))), threshold=limit)  # fmt: skip


def _temperature(record: Record) -> Check:
    values, remedy = _values(record, "celsius"), "look at fans, airflow and room; compare with its neighbours"
    own = (record.result("before").get("reading") or {}).get("maximum_celsius")
    if not values:
        return _check(record, "temperature", "unverified", "NVML does not report it", remedy, nothing_known=True)
    limit = Threshold(
        value=float(own or USUAL_CELSIUS),
        unit="degrees Celsius",
        relation="at most",
        source="the board's own limit, by NVML" if own else "usual for data-centre GPUs; NVML names no limit",
    )
    evidence = f"{values[0]:.0f} at the start, {max(values):.0f} at most, {values[-1]:.0f} at the end"
    status = compared(max(values), limit)
    if own and status == "pass" and max(values) > own - NEAR_CELSIUS:
        status, evidence = "unverified", f"{evidence}; it slows down at {own:.0f}"
    if status == "pass" and _stands_still(record, values):
        status, evidence = "unverified", f"{evidence}, and no more before it: the sensor may stand still"
    return _check(record, "temperature", status, evidence, remedy,
                  measured=float(max(values)), threshold=limit)  # fmt: skip


def _stands_still(record: Record, celsius: Sequence[float]) -> bool:
    """Whether minutes of load, which take far more power than before, do not move the temperature at all."""
    before = record.result("before").get("reading") or {}
    cold, idle, watts = before.get("temperature_celsius"), before.get("power_watts"), _values(record, "watts")
    if cold is None or not idle or not watts or len(celsius) < FEWEST_SAMPLES:
        return False
    stands_still = min(celsius) == max(celsius) == cold
    return stands_still and median(watts) > float(HARD_AT_WORK * idle)


def _kept(record: Record) -> Check:
    paces, clocks = _values(record, "products_per_second"), _values(record, "sm_clock_hertz")
    quarter = max(1, len(paces) // 4)
    ratio = median(paces[-quarter:]) / median(paces[:quarter])
    shown = f"; SM clock {min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz" if clocks else ""
    return _check(record, "pace over time", compared(ratio, KEPT_PACE),
                  f"{ratio:.2f} of the first quarter's in the last{shown}",
                  "it slows down as it gets warm: cooling, power supply, neighbours in the rack",
                  measured=ratio, threshold=KEPT_PACE)  # fmt: skip
