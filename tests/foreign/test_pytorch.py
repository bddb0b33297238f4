"""PyTorch's own databases of cases end on the virtual GPU as `known.toml` has it: at night."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.foreign.pytorch import compare, run

ROOT = Path(__file__).resolve().parents[2]
needs_expecttest = pytest.mark.skipif(find_spec("expecttest") is None, reason="PyTorch's test code needs expecttest")

# Each was wrong once: empty operands, gradients made by C++ code, checks of arguments, zeros without memory.
ONCE_WRONG = (
    "addmm", "baddbmm", "matmul", "sgn", "repeat", "copysign", "linalg.matrix_rank", "narrow_copy", "masked_fill",
    "cauchy", "log_normal", "uniform", "multinomial", "nn.functional.rms_norm", "sparse.sampled_addmm",
    "nn.functional.linear_cross_entropy.chunked",
)  # fmt: skip


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", "tests.foreign.pytorch.run", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_expecttest
@pytest.mark.night
def test_cases_that_were_wrong_once() -> None:
    _run(*ONCE_WRONG, "--jobs", "1")


@needs_expecttest
@pytest.mark.night
def test_all_cases() -> None:
    _run("--jobs", "2", "--samples", "4")


def test_what_is_known_has_a_reason() -> None:
    for row in run.known():
        assert set(row) == {"cases", "outcome", "why"}
        assert row["outcome"] in ("refused", "differs")
        assert row["why"]
    assert run.expected("layers: GRU float32", run.known()) == "differs"
    assert run.expected("operators: add float32", run.known()) == "passed"


def test_what_differs_is_told() -> None:
    right = torch.arange(6.0).reshape(2, 3)

    def differences(actual: torch.Tensor, expected: torch.Tensor = right) -> list[str]:
        return list(compare.differences(actual, expected, device="cpu"))

    assert differences(right.clone()) == []
    assert differences(right + 1e-5) == []
    assert "not close" in differences(right + torch.tensor([0.0, 0.0, 0.01]))[0]
    assert differences(right.t().contiguous().t()) == ["strides (1, 2), not (3, 1)"]
    assert differences(right.double()) == ["torch.float64 (2, 3), not torch.float32 (2, 3)"]
    assert differences(right.long() + 1, right.long()) == ["other whole numbers"]
    assert list(compare.differences(right, right, device="cuda")) == ["a result on cpu"]
    nan = torch.tensor([float("nan"), 1.0])
    assert differences(nan.clone(), nan) == []
    assert "not close" in differences(torch.tensor([0.0, 1.0]), nan)[0]


def test_copies_keep_views_and_who_is_who() -> None:
    base = torch.arange(12.0)
    view = base.view(3, 4).t()[1:]
    first, other, again = compare.on_the_cpu([view, base, view])
    assert first is again
    assert first is not view
    assert (first.stride(), first.storage_offset()) == (view.stride(), view.storage_offset())
    assert torch.equal(first, view)
    assert torch.equal(other, base)
