"""Values in which the cases of several criteria of Lab 1 differ."""

from __future__ import annotations

from grader.shared.dimensions import Dimension

NOT_GIVEN = "not given"
DTYPES = (NOT_GIVEN, "float16", "bfloat16", "float64")
GPU = Dimension("GPU", ("cuda", "cuda:0"), lambda case: "cuda:0" if case.get("indexed") else "cuda")
"""How a call names its GPU."""
