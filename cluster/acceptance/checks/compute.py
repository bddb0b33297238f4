"""Matrix products: every element is right, repeatable, and as fast as on the other GPUs and as the data sheet allows.

Operands are small integers, so that sums are exact in every precision and a wrong bit is no rounding. The result is
checked on the host, by two products with a vector instead of one with a matrix (R. Freivalds, IFIP 1977): with integer
entries that are not zero, a single wrong element cannot hide.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cluster.acceptance.checks import broken
from cluster.acceptance.context import Context
from cluster.acceptance.faults import SLOW_FACTOR
from cluster.acceptance.records import Record, against_peers
from cluster.acceptance.verdict import Check, Threshold, compared

PEERS = Threshold(
    value=1.25,
    unit="times the median of the other GPUs",
    relation="at most",
    source="GPUs of one model vary by 8 % on average, by 22 % at most (Sinha et al. 2022, arXiv:2208.11035)",
)
SHEET = Threshold(
    value=0.35,
    unit="of the data sheet's dense peak",
    relation="at least",
    source="ours: cuBLAS reaches 60 to 80 %; boards with a low power limit, such as the T4, hold about 40 %",
)


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
    return {"rows": sizes.rows, "depth": sizes.depth, "products": products}


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
    first = a @ b
    context.synchronize()
    factor = SLOW_FACTOR if context.has_fault("slow") else 1
    seconds, differing = [], 0
    for _ in range(context.sizes.samples):
        context.synchronize()
        started = time.perf_counter()
        for _ in range(factor):
            again = a @ b
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
    seen = torch.cat([rows.double() @ vector for rows in product.split(1024)])
    through = torch.cat([rows.double() @ vector for rows in right.split(1024)])
    expected = torch.cat([rows.double() @ through for rows in left.split(1024)])
    # `~(a == b)` also holds for what is not a number.
    return [int(row) for row in (~(seen == expected)).nonzero().flatten()[:10]]


def judge(records: Sequence[Record]) -> list[Check]:
    """Checks of all ranks' products."""
    checks = broken(records, "compute", "gpu")
    there = [record for record in records if record.measured("compute")]
    names = dict.fromkeys(name for record in there for name in record.result("compute")["products"])
    for name in names:
        having = [record for record in there if name in record.result("compute")["products"]]
        checks += [_result(record, name) for record in having]
        with_gpu = [record for record in having if record.gpu is not None]
        checks += _peers(with_gpu, name)
        checks += [_sheet(record, name) for record in with_gpu]
    return checks


def _found(record: Record, name: str) -> dict[str, Any]:
    found: dict[str, Any] = record.result("compute")["products"][name]
    return found


def _result(record: Record, name: str) -> Check:
    found, size = _found(record, name), record.result("compute")
    rows, differing = found["wrong_rows"], found["differing_repeats"]
    evidence = (
        f"[{size['rows']}, {size['depth']}] x [{size['depth']}, {size['rows']}]: every element exact, all repeats equal"
    )
    if rows or differing:
        evidence = f"wrong rows {rows} of {size['rows']}; {differing} of {len(found['seconds'])} repeats differ"
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


def _peers(records: Sequence[Record], name: str) -> list[Check]:
    seconds = [median(_found(record, name)["seconds"]) for record in records]
    checks = []
    for record, own, ratio in zip(records, seconds, against_peers(seconds), strict=True):
        evidence = f"{own * 1e3:.3f} ms"
        checks.append(
            Check(
                name=f"product {name}: time against peers",
                part="gpu",
                subject=record.subject,
                rank=record.rank,
                status="skipped" if ratio is None else compared(ratio, PEERS),
                evidence=f"{evidence}; no other GPU to compare with"
                if ratio is None
                else f"{evidence}, {ratio:.2f} times the median of its peers",
                remedy="compare clocks, power limit and temperature with a good one (nvidia-smi -q -d CLOCK,POWER)",
                measured=ratio,
                threshold=PEERS,
            )
        )
    return checks


def _sheet(record: Record, name: str) -> Check:
    tflops = _found(record, name)["tflops"]
    peak = (record.result("presence").get("peak_tflops") or {}).get(name)
    unknown = "this model's data sheet is not known here, so only peers and --baseline say whether that is right"
    return Check(
        name=f"product {name}: rate against the data sheet",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status="skipped" if peak is None else compared(tflops / peak, SHEET),
        evidence=f"{tflops:.1f} TFLOPS; {unknown}" if peak is None else f"{tflops:.1f} of {peak:.1f} TFLOPS",
        remedy="look for throttling below; is the power limit lowered (nvidia-smi -q -d POWER,CLOCK)?",
        measured=None if peak is None else tflops / peak,
        threshold=SHEET,
    )
