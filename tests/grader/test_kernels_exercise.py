"""The exercise "kernels of your own" where Triton is missing, and its reference in the eyes of a GPU's compiler."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from gradebox.run.assertions import NeedsReview
from gradebox.run.submission import Submission
from grader.kernels.shared import checks

ROOT = Path(__file__).parents[2]
SHARED_BYTES = 64 << 10
"""Of a T4, for one block."""
IMPORT = """
import importlib.util
importlib.util.find_spec = lambda name: None
import solutions.kernels_exercise
"""
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from solutions.kernels_exercise import flash_attention, matmul, softmax, vector_add

def compiled(kernel, kind, **constants):
    def type_of(name):
        if name in constants:
            return "constexpr"
        if name.endswith("_ptr"):
            return "*fp32" if name in ("log_sum_ptr", "product_ptr") else kind
        return "fp32" if name == "scale" else "i32"
    signature = {name: type_of(name) for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=places)
    done = triton.compile(source, target=GPUTarget("cuda", 75, 32))
    print(kernel.__name__, done.metadata.shared)

compiled(vector_add._add, "*fp32", BLOCK=4096)
compiled(softmax._softmax, "*fp16", BLOCK=8192)
tiles = matmul.TILES[0]
compiled(matmul._product, "*fp16", TILE_M=tiles.m, TILE_N=tiles.n, TILE_K=tiles.k)
sizes = {"HEAD_DIM": 128, "ROWS": 16, "COLUMNS": 16, "CAUSAL": True}
for kernel in (flash_attention._forward, flash_attention._backward_of_keys, flash_attention._backward_of_queries):
    compiled(kernel, "*fp32", **sizes)
"""


def test_a_check_says_in_a_sentence_that_it_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NeedsReview, match=r"^this exercise needs Triton, which is not installed here$"):
        checks.ask(cast(Submission, None), "kernels.add.vector_add")


def test_the_exercise_itself_says_so_too() -> None:
    done = run(IMPORT)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: this exercise needs Triton, which is not installed here: pip install")


@pytest.mark.night
def test_the_references_kernels_are_compiled_for_a_real_gpu(tmp_path: Path) -> None:
    """The interpreter takes what Triton's compiler refuses: hints of Python's types, for one."""
    pytest.importorskip("triton", reason="needs Triton")
    done = run(COMPILE, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    shared = dict(line.split() for line in done.stdout.splitlines())
    assert len(shared) == 6
    assert {name: size for name, size in shared.items() if int(size) > SHARED_BYTES} == {}


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known: dict[str, Any] = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=known, capture_output=True, text=True, check=False, timeout=600
    )
