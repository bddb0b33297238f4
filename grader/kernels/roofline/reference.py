"""The work that kernels cannot do without, and their places on the roofline."""

from __future__ import annotations

from grader.kernels.roofline.cases import Place, PlaceCase, Work, WorkCase


def work(case: WorkCase) -> Work:
    """FLOPs and bytes of `vector_add_work` and the like, by the names of their arguments."""
    sizes = case["sizes"]
    element = sizes["element_bytes"]
    if case["name"] == "vector_add_work":
        return {"flops": sizes["count"], "bytes": 3 * sizes["count"] * element}
    if case["name"] == "softmax_work":
        elements = sizes["rows"] * sizes["columns"]
        return {"flops": 5 * elements, "bytes": 2 * elements * element}
    if case["name"] == "matmul_work":
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        return {"flops": 2 * m * n * k, "bytes": (m * k + k * n + m * n) * element}
    heads, length, width = sizes["batch"] * sizes["heads"], sizes["length"], sizes["head_dim"]
    pairs = length * (length + 1) // 2 if sizes["causal"] else length**2
    return {"flops": 4 * heads * pairs * width, "bytes": heads * (4 * length * width * element + 4 * length)}


def place(kernel: str, case: PlaceCase) -> Place:
    """Where a kernel is on the roofline; the ridge itself belongs to compute."""
    intensity = case["flops"] / case["bytes"]
    ridge = case["peak_flops"] / case["bytes_per_second"]
    return {
        "kernel": kernel,
        "flops": case["flops"],
        "bytes": case["bytes"],
        "seconds": case["seconds"],
        "intensity": intensity,
        "achieved_flops": case["flops"] / case["seconds"],
        "attainable_flops": min(case["peak_flops"], intensity * case["bytes_per_second"]),
        "bound": "memory" if intensity < ridge else "compute",
    }
