"""Matrix products: every element is right, repeatable, and as fast as on the other GPUs and as the data sheet allows.

Operands are small integers, so that sums are exact in every precision and a wrong bit is no rounding. The result is
checked on the host, by two products with a vector instead of one with a matrix (R. Freivalds, IFIP 1977): with integer
entries that are not zero, a single wrong element cannot hide.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cluster.acceptance.checks import broken
from cluster.acceptance.checks.links import board_of
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.records import Record, against_good, against_peers
from cluster.acceptance.verdict import Check, Status, Threshold, believable, compared, graded

ALIKE = Threshold(
    value=1.12,
    unit="times the median of the other GPUs",
    relation="at most",
    source="ours: sound GPUs of one model stay within it, the 8 % of Sinha et al. being between the ends of a fleet",
)
"""Beyond it nothing passes; PEERS says what fails."""
NODES_FAIL, NODES_PASS = 1.15, 1.08
"""Ours, times the median of the other nodes: GPUs of a node even each other out."""
MOST_OF_PEAK = 1.3
"""Ours: some boards boost beyond the clock of their data sheet."""
SHEET_PASSES = 0.72
"""Ours, as SHEET_SHARE: below it nothing passes."""
PEERS = Threshold(
    value=1.25,
    unit="times the median of the other GPUs",
    relation="at most",
    source="GPUs of one model vary by 8 % on average, by 22 % at most (Sinha et al. 2022, arXiv:2208.11035)",
)
SHEET_SHARE = 0.6
"""Ours, of what the best published products of the model reach: those are of larger matrices, on cold boards."""
BEST_UNKNOWN, BEST_OF_EIGHT_BITS = 0.85, 0.72
"""Shares of the data sheet that are the best of other models: A100 83 to 84 %; 8 bits on an H100."""
UNKNOWN_SHARE = 0.35
"""Ours, of the data sheet, where nobody published products: boards with a low power limit hold about 40 %."""
FEWEST_SECONDS = 50e-6
"""A product that would take less at the data sheet's rate measures how fast products are launched."""
EIGHT_BITS = "float8_e4m3fn"
_EIGHT_BITS_TIMES = 2.0
"""Times the peak of bfloat16, on every board that has both (NVIDIA's data sheets)."""
_BUILT_WITHOUT = ("only supported", "not supported", "not compiled", "not implemented")
"""What PyTorch says of an operation that it was built without (aten/src/ATen/native/cuda/ScaledBlas.cpp)."""
OUTLIER_TIMES = 1.15
OUTLIER_DEVIATIONS = 3.5
"""Of the modified z-score (Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers)."""
FEWEST_OF_A_FLEET = 4
"""With fewer, one GPU is a third of what it is compared with."""
SPREAD_SHARE = 0.01
"""Ours: equal times to the microsecond are no reason to call one percent a deviation."""


def measure(context: Context) -> dict[str, Any]:
    """Time and correctness of products [rows, depth] x [depth, rows], by dtype."""
    sizes = context.sizes
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(1000 + context.rank)
    left = torch.randint(-1, 2, (sizes.rows, sizes.depth), generator=generator)
    right = torch.randint(-1, 2, (sizes.depth, sizes.rows), generator=generator)
    products = {}
    for dtype in _dtypes(context):
        name = str(dtype).removeprefix("torch.")
        context.at(f"product in {name}")
        products[name] = _product(context, left.to(dtype), right.to(dtype))
    if context.on_gpu and (rates := _eight_bits(context, left, right)) is not None:
        products[EIGHT_BITS] = rates
    return {"rows": sizes.rows, "depth": sizes.depth, "products": products}


def _eight_bits(context: Context, left: Tensor, right: Tensor) -> dict[str, Any] | None:
    """The same product of 8-bit floats; None where the GPU or PyTorch has none.

    Accumulated fast, as it is in training: the integers are small enough for the fewer bits of these sums.
    """
    if torch.cuda.get_device_capability(context.torch_device) < (8, 9):
        return None
    dtype, device = torch.float8_e4m3fn, context.torch_device
    # cuBLASLt wants the right one by columns. Sums are below 2,048, so that half precision holds them exactly.
    a, b = left.to(device).to(dtype), right.t().contiguous().to(device).to(dtype).t()
    unit_scale = torch.ones((), device=device)

    def multiply() -> Tensor:
        return torch._scaled_mm(
            a, b, scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.float16, use_fast_accum=True
        )

    context.at(f"product in {EIGHT_BITS}")
    try:
        multiply()
        context.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        # Whatever else goes wrong is what this test is for.
        if isinstance(error, NotImplementedError) or any(words in str(error) for words in _BUILT_WITHOUT):
            return None
        raise
    return _timed(context, multiply, left, right)


def _dtypes(context: Context) -> list[torch.dtype]:
    if not context.on_gpu:
        return [torch.float32]
    dtypes = [torch.float32, torch.float16]
    if torch.cuda.get_device_properties(context.torch_device).major >= 8:
        dtypes.append(torch.bfloat16)
    return dtypes


def _product(context: Context, left: Tensor, right: Tensor) -> dict[str, Any]:
    """`left` and `right` are on the CPU."""
    a, b = left.to(context.torch_device), right.to(context.torch_device)
    return _timed(context, lambda: a @ b, left, right)


def _timed(context: Context, multiply: Callable[[], Tensor], left: Tensor, right: Tensor) -> dict[str, Any]:
    first = multiply()
    context.synchronize()
    factor = SLOW_FACTOR if context.has_fault("slow") else 1
    seconds, differing = [], 0
    for _ in range(context.sizes.samples):
        context.synchronize()
        started = time.perf_counter()
        for _ in range(factor):
            again = multiply()
        context.synchronize()
        seconds.append(time.perf_counter() - started)
        differing += not torch.equal(again, first)
    if context.has_fault("wrong-result"):
        first[first.shape[0] // 2, 3] += 1
    return {
        "seconds": seconds,
        "tflops": 2 * left.shape[0] * left.shape[1] * right.shape[1] / median(seconds) / 1e12,
        "wrong_rows": _wrong_rows(first.cpu(), left, right),
        "differing_repeats": differing,
    }


def _wrong_rows(product: Tensor, left: Tensor, right: Tensor) -> list[int]:
    """Rows of the product that are wrong, at most ten of them."""
    vector = torch.randint(1, 8, (right.shape[1],), generator=torch.Generator().manual_seed(7)).double()
    actual = torch.cat([rows.double() @ vector for rows in product.split(1024)])
    through = torch.cat([rows.double() @ vector for rows in right.split(1024)])
    expected = torch.cat([rows.double() @ through for rows in left.split(1024)])
    # `~(a == b)` also holds for what is not a number.
    return [int(row) for row in (~(actual == expected)).nonzero().flatten()[:10]]


def judge(
    records: Sequence[Record], *, expected: Expectations | None = None, has_baseline: bool = False
) -> list[Check]:
    """Checks of all ranks' products; with a baseline, rates that have no bar of their own are that one's to judge."""
    checks = broken(records, "compute", "gpu")
    there = [record for record in records if record.measured("compute")]
    names = dict.fromkeys(name for record in there for name in record.result("compute")["products"])
    for name in names:
        having = [record for record in there if name in record.result("compute")["products"]]
        checks += [_result(record, name) for record in having]
        with_gpu = [record for record in having if record.gpu is not None]
        checks += [_missing(record, name) for record in _without(there, with_gpu)]
        for same in by_model(with_gpu).values():
            checks += _peers(same, name) + _nodes(same, name)
        checks += [_sheet(record, name, expected, has_baseline) for record in with_gpu]
    return checks


def _without(records: Sequence[Record], having: Sequence[Record]) -> list[Record]:
    """Ranks that lack a product which others of their model have."""
    models = {record.result("presence").get("device_name") for record in having}
    return [
        record
        for record in records
        if record.gpu is not None and record not in having and record.result("presence").get("device_name") in models
    ]


def _missing(record: Record, name: str) -> Check:
    return Check(
        name=f"product {name}: result",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status="unverified",
        evidence="not measured; on others of this model it was",
        remedy="install the same image on every node: this PyTorch was built without it",
    )


def by_model(records: Sequence[Record]) -> dict[Any, list[Record]]:
    """Only GPUs of one model are compared with each other."""
    models: dict[Any, list[Record]] = {}
    for record in records:
        models.setdefault(record.result("presence").get("device_name"), []).append(record)
    return models


def _nodes(records: Sequence[Record], name: str) -> list[Check]:
    """A node whose GPUs are all slower than those of the others: among its own, nobody is slow."""
    groups: dict[str, list[float]] = {}
    for record in records:
        groups.setdefault(record.node, []).append(median(_found(record, name)["seconds"]))
    if len(groups) < 2 or len(records) < 2 * len(groups):
        return []
    seconds = [median(values) for values in groups.values()]
    unit, source = "times the median of the other nodes", "ours: GPUs of a node even each other out"
    fails, passes = (
        Threshold(value=value, unit=unit, relation="at most", source=source) for value in (NODES_FAIL, NODES_PASS)
    )
    checks = []
    for node, own, ratio in zip(groups, seconds, against_peers(seconds), strict=True):
        assert ratio is not None
        status, limit = graded(ratio, fails, passes)
        checks.append(
            Check(
                name=f"product {name}: node against nodes",
                part="gpu",
                subject=f"node {node}",
                status=status,
                evidence=f"median of its GPUs {own * 1e3:.3f} ms, {ratio:.2f} times the median of the others",
                remedy="what do its GPUs have in common: power supply, cooling, driver, clocks that somebody has set?",
                measured=ratio,
                threshold=limit,
            )
        )
    return checks


def peers_grade(ratio: float | None, deviations: float) -> tuple[Status, Threshold]:
    """The outcome of a GPU that takes so many times as long as the others, and the threshold that decided it."""
    return graded(ratio, outlier_limit(PEERS, deviations), ALIKE)


def _found(record: Record, name: str) -> dict[str, Any]:
    product: dict[str, Any] = record.result("compute")["products"][name]
    return product


def _result(record: Record, name: str) -> Check:
    product, size = _found(record, name), record.result("compute")
    rows, differing = product["wrong_rows"], product["differing_repeats"]
    evidence = (
        f"[{size['rows']}, {size['depth']}] x [{size['depth']}, {size['rows']}]: every element exact, all repeats equal"
    )
    if rows or differing:
        evidence = f"wrong rows {rows} of {size['rows']}; {differing} of {len(product['seconds'])} repeats differ"
    return Check(
        name=f"product {name}: result",
        part="run" if record.gpu is None else "gpu",
        subject=record.subject,
        rank=record.rank,
        status="fail" if rows or differing else "pass",
        evidence=evidence,
        remedy="a GPU that computes wrong goes out of service: dcgmi diag -r 3, then have the board replaced",
        measured=float(len(rows) + differing),
        threshold=Threshold(
            value=0, unit="wrong rows and repeats", relation="at most", source="sums of small integers are exact"
        ),
    )


def outlying(values: Sequence[float]) -> list[float]:
    """How many deviations each value lies above the median of all; 0.0 for all of a fleet that is too small.

    By the median of the absolute deviations, which one value that is far off does not widen.
    """
    if len(values) < FEWEST_OF_A_FLEET:
        return [0.0] * len(values)
    middle = median(values)
    spread = max(median(abs(value - middle) for value in values), SPREAD_SHARE * middle)
    return [0.6745 * (value - middle) / spread for value in values]  # 0.6745: a normal distribution's quartile


def outlier_limit(usual: Threshold, deviations: float) -> Threshold:
    """The stricter bar for one that lies as far as that above all others of a fleet."""
    if deviations <= OUTLIER_DEVIATIONS:
        return usual
    source = f"ours, where the others are alike: {deviations:.1f} deviations above them"
    return replace(usual, value=OUTLIER_TIMES, source=source)


def _peers(records: Sequence[Record], name: str) -> list[Check]:
    seconds = [median(_found(record, name)["seconds"]) for record in records]
    deviations = outlying(seconds)
    checks = []
    for record, own, ratio, far in zip(records, seconds, against_good(seconds), deviations, strict=True):
        status, limit = peers_grade(ratio, far)
        evidence = f"{own * 1e3:.3f} ms"
        checks.append(
            Check(
                name=f"product {name}: time against peers",
                part="gpu",
                subject=record.subject,
                rank=record.rank,
                status=status,
                evidence=f"{evidence}; no other GPU to compare with"
                if ratio is None
                else f"{evidence}, {ratio:.2f} times the median of its peers",
                remedy="compare clocks, power limit and temperature with a good one (nvidia-smi -q -d CLOCK,POWER)",
                measured=ratio,
                threshold=limit,
            )
        )
    return checks


def _sheet(record: Record, name: str, expected: Expectations | None, has_baseline: bool) -> Check:
    tflops, size, presence = _found(record, name)["tflops"], record.result("compute"), record.result("presence")
    peaks, held = presence.get("peak_tflops") or {}, (presence.get("held_ratio") or {}).get(name)
    known = board_of(record)
    published = known.tflops if known is not None and known.tflops is not None else {}
    peak = peaks.get(name) or published.get(name)
    if name == EIGHT_BITS and peak is None:
        half = peaks.get("bfloat16") or published.get("bfloat16")
        peak = peaks.get("float8") or (_EIGHT_BITS_TIMES * half if half else None)
    threshold = None if expected is None else expected.threshold("compute_tflops", name, "TFLOPS", "at least")
    status: Status
    short, best = False, None
    if threshold is not None:
        limit, measured, evidence = threshold, tflops, f"{tflops:.1f} TFLOPS"
        status = compared(tflops, threshold)
    elif peak is None:
        status, limit, measured = "skipped" if has_baseline else "unverified", None, None
        evidence = f"{tflops:.1f} TFLOPS; this model's data sheet is not known here, so only --expect and --baseline "
        evidence += "say whether that is right"
    else:
        measured, evidence = tflops / peak, f"{tflops:.1f} of {peak:.1f} TFLOPS"
        fails, passes, best = _bar(held), _bar(held, SHEET_PASSES), held or BEST_UNKNOWN
        if name == EIGHT_BITS:
            best = min(best, BEST_OF_EIGHT_BITS)
        if name == EIGHT_BITS and (low := _power_held(presence)) is not None:
            fails, passes = (min(bar, of, key=lambda one: one.value) for bar, of in
                             ((fails, _bar(low)), (passes, _bar(low, SHEET_PASSES))))  # fmt: skip
        outcome = graded(measured, fails, passes)
        status, limit = believable(outcome, measured, MOST_OF_PEAK, unit=passes.unit)
        if short := 2 * size["rows"] ** 2 * size["depth"] / (peak * 1e12) < FEWEST_SECONDS:
            status, evidence = "unverified", f"{evidence}; the product is too short to judge"
    return Check(
        name=f"product {name}: rate against the data sheet",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status=status,
        evidence=evidence,
        remedy="look for throttling below; is the power limit lowered (nvidia-smi -q -d POWER,CLOCK)? What is meant: "
        f"--expect, [compute_tflops] {name}",
        measured=measured,
        threshold=limit,
        published=best,
        nothing_known=short or limit is None,
    )


def _power_held(presence: dict[str, Any]) -> float | None:
    """The share that bfloat16 reaches: nobody has published 8 bits, but a low power limit holds them back as well."""
    share = (presence.get("held_ratio") or {}).get("bfloat16")
    return None if share is None else float(share)


def _bar(held: float | None, share: float = SHEET_SHARE) -> Threshold:
    source = f"ours, {share:.0%} of the best published products of this model, which reach {held or 0:.0%}"
    return Threshold(
        value=UNKNOWN_SHARE / SHEET_SHARE * share if held is None else share * held,
        unit="of the data sheet's dense peak",
        relation="at least",
        source="ours: boards with a low power limit hold about 40 %" if held is None else source,
    )
