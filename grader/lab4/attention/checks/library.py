"""Judges what Lab 4's flash attention calls where flash-attn is installed."""

from __future__ import annotations

from dataclasses import dataclass

from gradebox.course.criterion import criterion
from gradebox.run.assertions import require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.attention.cases.draws import as_bfloat16
from grader.lab4.attention.cases.types import Installed
from grader.lab4.attention.checks.comparison import TOLERANCE
from grader.lab4.attention.reference import attention

_KERNELS = (
    "flash_attn: float16 or bfloat16, compute capability 8.0 or higher; flash_attn.cute: 9.0 or higher, and before it; "
    "each looked for at each call"
)


@dataclass(frozen=True)
class Library:
    """A GPU, the packages that are installed, a dtype, and what flash_attention() must call."""

    gpu: str
    packages: list[str]
    dtype: str
    expected: str


@criterion("lab4.attention")
class TestLibrary:
    def test_flash_attn_used_when_installed(self, submission: Submission, generator: InputGenerator) -> None:
        for library in libraries(generator):
            require_library(submission, generator, library)


def libraries(generator: InputGenerator) -> list[Library]:
    """What may be installed where."""
    v2, cute = ["flash_attn"], ["flash_attn.cute"]
    both = [*v2, *cute]
    low = generator.shuffled(["float16", "bfloat16"] * 3)
    # Which of the two has float32, and what is installed there and on the T4, is drawn.
    (row,) = generator.cases({"model": ("A100-80GB", "H100"), "float32": (v2, cute, both), "T4": (v2, both)}, 1)
    return [
        Library("A100-80GB", v2, low[0], "flash_attn"),
        Library("H100", both, low[1], "flash_attn.cute"),
        Library(row["model"], row["float32"], "float32", "sdpa"),
        Library("T4", row["T4"], low[2], "sdpa"),
        Library("A100-80GB", cute, low[3], "sdpa"),
        Library("H100", v2, low[4], "flash_attn"),
    ]


def require_library(
    submission: Submission, generator: InputGenerator, library: Library, *, causal: bool = False
) -> None:
    """Fail unless flash_attention() calls the library that is expected, once it is installed."""
    generator = generator.shared("lab4.installed")
    packages, dtype, expected = library.packages, library.dtype, library.expected
    queries, keys = generator.odd(5, 9), generator.odd(11, 15)
    q, k, v = (as_bfloat16(generator.normal(2, 3, count, 8)) for count in (queries, keys, keys))
    reply = submission.probe(
        Installed(modules=packages, dtype=dtype, causal=causal, q=q, k=k, v=v), device=f"vgpu:{library.gpu}"
    )
    what = f"on a virtual {library.gpu} in {dtype}, with {' and '.join(packages) or 'no flash-attn'} installed"
    hint = "look for the packages at each call, not at import, and keep no answer of an earlier call"
    require_equal(reply.before, "sdpa", what="attention_backend() before anything is installed", hint=hint)
    require_equal(reply.backend, expected, what=f"attention_backend() {what} since its first call", hint=_KERNELS)
    require_equal(reply.on_cpu, "sdpa", what=f'attention_backend("cpu") {what}', hint="ask for the device given")
    called = [call.module for call in reply.calls]
    require_equal(
        called,
        [expected, expected] if expected != "sdpa" else [],
        what=f"libraries that flash_attention() called {what}",
    )
    for call in reply.calls:
        shapes = [[2, count, 3, 8] for count in (queries, keys, keys)]
        hint = "flash-attn wants [batch, length, heads, head_dim]: swap heads and length, and swap back"
        require_equal(call.shapes, shapes, what=f"shapes that {expected} was given {what}", hint=hint)
        require_equal(call.causal, causal, what=f"causal that {expected} was given {what}")
    if expected == "sdpa":  # what comes out then is judged by flash_equals_reference
        return
    hints = ["swap heads back", "version 4 may return a tuple, or the output alone"]
    for output, hint in zip(reply.outputs, hints, strict=True):
        require_arrays_close(
            output,
            attention(q, k, v, None, causal=causal)["output"],
            rtol=0,
            atol=TOLERANCE[dtype] * 4,
            what=f"output of flash_attention() {what}",
            hint=hint,
        )
