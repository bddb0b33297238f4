"""What CUDA's kernels take: the tables of `vgpu.tools.cuda_rules`, and their words where a program asks for more."""

# mypy: disable-error-code="no-untyped-call"
# (parts of PyTorch carry no annotations)

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

import vgpu
from vgpu.runtime.operations import cuda_dtypes
from vgpu.runtime.versions import torch_version
from vgpu.tools.cuda_rules import condense, probe
from vgpu.tools.cuda_rules.databases import key_of, operators

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = Path(__file__).parent / "cuda_functions/torch-{}.{}.json".format(*torch_version())


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device="cuda")


REFUSED: dict[str, Callable[[], Any]] = {
    "\"addmm_cuda\" not implemented for 'Long'": lambda: whole(2, 2) @ whole(2, 2),
    "\"addmm_cuda\" not implemented for 'Bool'": lambda: whole(2, 2, dtype=torch.bool) @ whole(2, 2, dtype=torch.bool),
    "\"addmm_cuda\" not implemented for 'Int'": lambda: F.linear(whole(2, 2).int(), whole(2, 2).int()),
    "\"addmm_cuda\" not implemented for 'Short'": lambda: (
        whole(2, 2).short().addmm_(whole(2, 2).short(), whole(2, 2).short())
    ),
    "\"addmm_cuda\" not implemented for 'Byte'": lambda: torch.mm(
        whole(2, 2).byte(), whole(2, 2).byte(), out=whole(2, 2).byte()
    ),
    "\"baddbmm_cuda\" not implemented for 'Long'": lambda: torch.einsum("ij,jk", whole(2, 2), whole(2, 2)),
    "\"dot\" not implemented for 'Long'": lambda: whole(2) @ whole(2),
    "\"addmv_impl_cuda\" not implemented for 'Long'": lambda: whole(2, 2) @ whole(2),
    "getCudnnDataTypeFromScalarType\\(\\) not supported for Long": lambda: F.conv2d(
        whole(1, 1, 4, 4), whole(1, 1, 2, 2)
    ),
    "GET was unable to find an engine to execute this computation": lambda: F.conv2d(
        whole(1, 1, 4, 4).int(), whole(1, 1, 2, 2).int()
    ),
    "\"host_softmax\" not implemented for 'Long'": lambda: torch.softmax(whole(2), 0),
    "\"upsample_bilinear2d_out_frame\" not implemented for 'Byte'": lambda: F.interpolate(
        whole(1, 1, 2, 2).byte(), scale_factor=2, mode="bilinear"
    ),
    "\"ufunc_add_CUDA\" not implemented for 'UInt16'": lambda: whole(2, dtype=torch.uint16) + 1,
    "\"check_uniform_bounds\" not implemented for 'Int'": lambda: torch.rand(2, dtype=torch.int32, device="cuda"),
    "expected probabilities tensor to have floating type, got Long": lambda: torch.bernoulli(whole(2)),
    "Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend": lambda: torch.histogram(
        whole(4).float(), 3
    ),
    "`driver` other than `gels` is not supported on CUDA": lambda: torch.linalg.lstsq(
        whole(2, 2).float(), whole(2, 2).float(), driver="gelsy"
    ),
    "unknown svd driver x in svd_cusolver": lambda: torch.linalg.svd(whole(2, 2).float(), driver="x"),
    "self.size\\(0\\) needs to be greater than 16, but got 4": lambda: torch._int_mm(
        whole(4, 32).char(), whole(32, 32).char()
    ),
    "mat2.size\\(1\\) needs to be greater than 0 and a multiple of 8": lambda: torch._int_mm(
        whole(17, 8).char(), whole(8, 9).char()
    ),
    "to - 1 is out of bounds for unsigned char": lambda: torch.randint(0, 300, (2,), dtype=torch.uint8, device="cuda"),
    "Cauchy distribution is a continuous probability distribution. dtype must be a floating point but you specified "
    "long int": lambda: whole(2).cauchy_(),
    "Exponential distribution .* you specified c10::complex<float>": lambda: whole(
        2, dtype=torch.complex64
    ).exponential_(),
    "expected tensor_indices_or_sections to be on cpu, but it's on cuda:0": lambda: whole(4).tensor_split(
        torch.tensor(2, device="cuda")
    ),
    "\"addmm_cuda\" not implemented for 'Char'": lambda: torch.addmm(
        torch.ones((), dtype=torch.int8, device="cuda"), whole(2, 2).char(), whole(2, 2).char()
    ),
    "\"cuda_scatter_gather_base_kernel_func\" not implemented for 'Bool'": lambda: torch.scatter_reduce(
        whole(2, dtype=torch.bool), 0, whole(1), whole(1, dtype=torch.bool), "amax"
    ),
    "from is out of bounds for c10::Half": lambda: whole(2).half().uniform_(-7e4, 7e4),
}


def test_refusals_have_the_words_of_cuda(gpu: vgpu.VirtualGPU) -> None:
    for words, call in REFUSED.items():
        with pytest.raises(RuntimeError, match=words):
            call()


def test_refusals_need_no_values(shapes: vgpu.VirtualGPU) -> None:
    with pytest.raises(NotImplementedError, match="\"addmm_cuda\" not implemented for 'Long'"):
        whole(2, 2) @ whole(2, 2)


ACCEPTED: dict[str, tuple[Callable[[], torch.Tensor], object]] = {
    "an empty product": (lambda: whole(0, 2) @ whole(2, 2), []),
    "promoted operands": (lambda: whole(2, dtype=torch.uint16) + 1.5, [2.5, 2.5]),
    "another dtype asked for": (lambda: torch.rand_like(whole(2), dtype=torch.float32) * 0, [0.0, 0.0]),
    "no kernel on the CPU": (lambda: whole(2, dtype=torch.bool).abs(), [True, True]),
    "a histogram of integers": (lambda: torch.histc(torch.arange(4, device="cuda"), 2), [2, 2]),
    "a transform in bfloat16": (lambda: torch.fft.fft(torch.ones(6, device="cuda").bfloat16()).real[1:2], [0.0])
    if torch_version() > (2, 11)
    else (lambda: whole(1), [1]),
    "a driver of cuSOLVER": (lambda: torch.linalg.svdvals(torch.eye(2, device="cuda"), driver="gesvda"), [1.0, 1.0]),
    "an empty result": (lambda: torch.nn.functional.pdist(torch.ones(1, 3, dtype=torch.float16, device="cuda")), []),
    "an empty tensor of a dtype that no kernel takes": (
        lambda: F.avg_pool1d(whole(0, 3, 9, dtype=torch.bool), 3).sum(),
        0,
    ),
    "a sum of truth values": (
        lambda: torch.scatter_reduce(whole(2, dtype=torch.bool), 0, whole(1), whole(1, dtype=torch.bool), "sum"),
        [True, True],
    ),
    "both parts of complex numbers": (
        lambda: torch.view_as_real(torch.zeros(1, dtype=torch.complex64, device="cuda").uniform_(1, 1)),
        [[1.0, 1.0]],
    ),
    "_int_mm": (lambda: torch._int_mm(whole(17, 8).char(), whole(8, 8).char())[0, :1], [8]),
    "lstsq has no rank": (
        lambda: torch.linalg.lstsq(torch.eye(2, device="cuda"), torch.eye(2, device="cuda")).rank,
        [],
    ),
}


def test_what_the_cpu_alone_lacks_is_computed(gpu: vgpu.VirtualGPU) -> None:
    for name, (call, values) in ACCEPTED.items():
        assert call().tolist() == values, name


def test_variants_of_an_operation_share_its_rule() -> None:
    for overload in (torch.ops.aten.addmm_.default, torch.ops.aten.addmm.out, torch.ops.aten.addmm.default):
        rule = cuda_dtypes.rule_of(overload)
        assert rule is not None
        assert rule.refused[torch.int64].endswith("\"addmm_cuda\" not implemented for 'Long'")


@pytest.mark.night
def test_a_program_does_not_load_what_only_tests_of_pytorch_need() -> None:
    program = """
import sys, torch, vgpu
before = set(sys.modules)
with vgpu.attach("T4"):
    torch.ones(2, 2, device="cuda").mm(torch.ones(2, 2, device="cuda"))
unwanted = ("torch.testing._internal", "vgpu.tools.cuda_rules")
assert not [name for name in set(sys.modules) - before if name.startswith(unwanted)]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- all of PyTorch's databases -------------------------------------------------------------------------------------

# Of these a program has no use in arithmetic: an operation that refuses them here, or accepts them, is no exception.
STORAGE = {"uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "complex32"}
EXCEPTIONS = {
    "jiterator_": "refused: CUDA C++ kernels compiled at run time",
    "mode": "a complex number without dimensions passes here",
    "nansum": "refused: the CPU underneath has no such kernel for complex numbers",
    "nanmean": "as nansum",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "PyTorch's own choice for tensors of the CPU",
    "torch.ops.aten._flash_attention_forward": "refused: the CPU underneath has no such kernel",
    "torch.ops.aten._efficient_attention_forward": "refused: the CPU underneath has no such kernel",
    "sparse.sampled_addmm": "refused: the CPU underneath has no such kernel in 16 bits",
    "clamp": "truth values are refused or promoted by the type of the bounds, and pass here",
    "_foreach_clamp": "as clamp",
    "_foreach_maximum": "as clamp",
    "_foreach_minimum": "as clamp",
    "layer GRUCell": "complex numbers pass here: the fused kernel is composed of others",
    "layer LSTMCell": "as GRUCell",
    "nn.functional.dropout": "complex numbers have no gradient here",
    "nn.functional.layer_norm": "empty tensors of integers and complex numbers are refused here",
    "to_sparse": "with PyTorch 2.11 complex numbers have no gradient here",
    "torch._scaled_mm_v2": "refused: the CPU underneath of PyTorch 2.11 has no such kernel",
    "optimizer LBFGS": "its steps depend on values",
}
SLICES = 8
SECONDS = 120


def expected() -> dict[str, Any]:
    if not FUNCTIONS.exists():
        pytest.skip(f"no table for this PyTorch: python -m vgpu.tools.cuda_rules --functions {FUNCTIONS.parent}")
    table: dict[str, Any] = json.loads(FUNCTIONS.read_text())
    return table


def differences(op: Any, rows: list[Any]) -> Iterator[str]:
    """Where an entry of a database accepts here what CUDA refuses, or the reverse: each of its first inputs."""
    key = key_of(op)
    claimed = {str(dtype).removeprefix("torch.") for dtype in op.dtypesIfCUDA}
    for letters, words, dtypes in rows:
        for dtype in (name for name in dtypes if name not in STORAGE):
            outcomes = list(probe.outcomes(op, dtype, probe._on_gpu, contextlib.nullcontext()))
            for place, (letter, outcome) in enumerate(zip(letters, outcomes, strict=False)):
                here = condense.letter_of(outcome, claimed=dtype in claimed)
                # "?": refused, but perhaps for values, which the stand-in for a GPU does not compute.
                if letter in (probe.SKIPPED, "?") or here == probe.SKIPPED or (letter == "y") == (here == "y"):
                    continue
                cuda = "yes" if letter == "y" else words.replace("{}", condense.NAMES[dtype])
                yield f"{key}, {dtype}, input {place}: CUDA says {cuda!r}, here {outcome or 'yes'!r}"


def compare(part: int, parts: int) -> None:
    """Print what differs in one of `parts` slices of the databases."""
    warnings.filterwarnings("ignore")
    table = expected()

    def interrupt(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, interrupt)
    with vgpu.attach("H100"):
        for op in operators()[part::parts]:
            key = key_of(op)
            if key not in table or key.startswith(tuple(EXCEPTIONS)):
                continue
            signal.alarm(SECONDS)
            try:
                for difference in differences(op, table[key]):
                    print(difference, flush=True)
            except TimeoutError:
                print(f"{key}: not done after {SECONDS} s", flush=True)
            finally:
                signal.alarm(0)


def compare_elsewhere(part: int, parts: int) -> None:
    """PyTorch's test code locks flags of cuDNN for good, so it gets a process of its own."""
    expected()
    program = f"from tests.vgpu.test_cuda_dtypes import compare; compare({part}, {parts})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.night
def test_operators_accept_what_cuda_accepts() -> None:
    """One in forty, the same every time."""
    compare_elsewhere(0, 40)


@pytest.mark.night
@pytest.mark.parametrize("part", range(SLICES))
def test_all_operators_layers_and_optimizers_accept_what_cuda_accepts(part: int) -> None:
    compare_elsewhere(part, SLICES)
