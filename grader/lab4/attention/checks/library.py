"""Judges what Lab 4's flash attention calls where flash-attn is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import ge, gt

import numpy as np
from numpy.typing import NDArray

from gradebox.course.criterion import criterion
from gradebox.run.assertions import Cause, recognising, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.attention.cases.draws import as_bfloat16
from grader.lab4.attention.cases.types import Installed, InstalledReply
from grader.lab4.attention.checks.comparison import TOLERANCE
from grader.lab4.attention.reference import attention

_KERNELS = (
    "Try flash_attn.cute first (compute capability 9.0 or higher), then flash_attn (8.0 or higher). Use both for "
    "float16 and bfloat16 only, and look for them at each call."
)
_CAPABILITIES = {"V100": 7.0, "T4": 7.5, "A100-80GB": 8.0, "H100": 9.0}
_LOW = ("float16", "bfloat16")
_CHECK = "lab4.attention.flash_attn_used_when_installed"
_MISTAKES: Mapping[str, tuple[str, str]] = {
    "looked_for_once": (
        "attention_backend() does not notice a package that is installed after its first call",
        "Look for the packages at each call, not at import, and keep no answer of an earlier call.",
    ),
    "flash_attn_on_any_gpu": (
        "attention_backend() chooses flash_attn on a GPU that it does not support",
        "Use flash_attn from compute capability 8.0 on, and PyTorch's own attention below.",
    ),
    "cute_on_any_gpu": (
        "attention_backend() chooses flash_attn.cute on a GPU that it does not support",
        "Use flash_attn.cute from compute capability 9.0 on.",
    ),
    "on_any_gpu": (
        "attention_backend() does not ask for the GPU's compute capability",
        "Use flash_attn from compute capability 8.0 on, and flash_attn.cute from 9.0 on.",
    ),
    "any_dtype": (
        "attention_backend() does not ask for the dtype",
        "Use flash-attn for float16 and bfloat16 only.",
    ),
    "least_is_not_enough": (
        "attention_backend() refuses a GPU of exactly the least compute capability",
        "Compare with >=: 8.0 itself is enough for flash_attn, and 9.0 itself for flash_attn.cute.",
    ),
    "flash_attn_first": (
        "attention_backend() prefers flash_attn to flash_attn.cute",
        "Try flash_attn.cute first where the GPU has compute capability 9.0 or higher.",
    ),
}
_ANOTHER_OUTPUT = Cause(
    "library output",
    "Pass Q, K and V to the library once each, in this order. Swap heads and length of its output back, and change "
    "nothing else in it. Version 4 may return a tuple, output first, or the output alone.",
    _CHECK,
    mistake="With flash-attn installed, flash_attention() does not return the library's attention of Q, K and V",
)
"""If the library was called with the right shapes."""


def _backend(library: Library, mistake: str) -> str:
    """What attention_backend() says with a mistake."""
    capability = _CAPABILITIES[library.gpu]
    least = {
        "flash_attn.cute": 0.0 if mistake in ("cute_on_any_gpu", "on_any_gpu") else 9.0,
        "flash_attn": 0.0 if mistake in ("flash_attn_on_any_gpu", "on_any_gpu") else 8.0,
    }
    if mistake == "looked_for_once" or not (library.dtype in _LOW or mistake == "any_dtype"):
        return "sdpa"
    order = sorted(least, reverse=mistake != "flash_attn_first")
    enough = gt if mistake == "least_is_not_enough" else ge
    return next((name for name in order if name in library.packages and enough(capability, least[name])), "sdpa")


@dataclass(frozen=True)
class Library:
    """A GPU, the packages that are installed, a dtype, and what flash_attention() must call."""

    gpu: str
    packages: list[str]
    dtype: str
    expected: str
    broken: tuple[str, ...] = ()
    """Packages that are installed and cannot be imported."""


@criterion("lab4.attention")
class TestLibrary:
    def test_flash_attn_used_when_installed(self, submission: Submission, generator: InputGenerator) -> None:
        for library in libraries(generator):
            require_library(submission, generator, library)


def libraries(generator: InputGenerator) -> list[Library]:
    """What may be installed where; the same for all checks of a grading."""
    generator = generator.shared("lab4.libraries")
    v2, cute = ["flash_attn"], ["flash_attn.cute"]
    both = [*v2, *cute]
    low = generator.shuffled(["float16", "bfloat16"] * 3)
    # Which of the two has float32, and what is installed there and on the T4, is drawn.
    drawn = {"model": ("A100-80GB", "H100"), "float32": (v2, cute, both), "T4": (v2, both)}
    # Version 4 alone is of no use on an A100, in whatever dtype.
    (row,) = generator.cases(drawn, 1, lambda row: (row["model"], row["float32"]) != ("A100-80GB", cute))
    return [
        Library("A100-80GB", v2, low[0], "flash_attn"),
        Library("H100", both, low[1], "flash_attn.cute"),
        Library(row["model"], row["float32"], "float32", "sdpa"),
        Library("T4", row["T4"], low[2], "sdpa"),
        Library("V100", both, low[5], "sdpa"),
        Library("A100-80GB", cute, low[3], "sdpa"),
        Library("H100", v2, low[4], "flash_attn", broken=("flash_attn.cute",)),
    ]


def require_library(
    submission: Submission, generator: InputGenerator, library: Library, *, causal: bool = False
) -> None:
    """Fail unless flash_attention() calls the library that is expected, once it is installed."""
    packages, dtype, expected = library.packages, library.dtype, library.expected
    reply, (q, k, v), factors = _installed(submission, generator, library, causal=causal)
    queries, keys = q.shape[-2], k.shape[-2]
    what = f"on a virtual {library.gpu} in {dtype}, with {' and '.join(packages) or 'no flash-attn'} installed"
    what += "".join(f", and {name}, whose import fails," for name in library.broken)
    hint = _MISTAKES["looked_for_once"][1]
    require_equal(reply.before, "sdpa", what="attention_backend() before anything is installed", hint=hint)
    with recognising(lambda: _cause_of(submission, generator)):
        require_equal(reply.backend, expected, what=f"attention_backend() {what} since its first call", hint=_KERNELS)
    require_equal(
        reply.on_cpu,
        "sdpa",
        what=f'attention_backend("cpu") {what}',
        hint="Ask for the capability of the device that is given.",
    )
    called = [call.module for call in reply.calls]
    require_equal(
        called,
        [expected, expected] if expected != "sdpa" else [],
        what=f"libraries that flash_attention() called {what}",
    )
    for call in reply.calls:
        shapes = [[2, count, 3, 8] for count in (queries, keys, keys)]
        hint = (
            "Swap heads and length before the call, and swap back: flash-attn wants [batch, length, heads, head_dim]."
        )
        require_equal(call.shapes, shapes, what=f"shapes that {expected} was given {what}", hint=hint)
        require_equal(call.causal, causal, what=f"causal that {expected} was given {what}")
    factor = factors.get(expected, 1.0)
    forms = [" as the first part of a tuple", " alone"] if expected == "flash_attn.cute" else ["", ""]
    for output, form in zip(reply.outputs, forms, strict=True):
        require_arrays_close(
            output,
            factor * attention(q, k, v, None, causal=causal)["output"],
            rtol=0,
            atol=TOLERANCE[dtype] * 4 * factor,
            what=f"output of flash_attention() {what}" + f", if {expected} returns its output{form}" * bool(form),
            hint=_ANOTHER_OUTPUT,
        )


def _installed(
    submission: Submission, generator: InputGenerator, library: Library, *, causal: bool
) -> tuple[InstalledReply, list[NDArray[np.float32]], Mapping[str, float]]:
    """What the submission does once a library is installed, the operands that it is given, and the stand-ins'
    factors."""
    generator = generator.shared("lab4.installed")
    queries, keys = generator.odd(5, 9), generator.odd(11, 15)
    q, k, v = (as_bfloat16(generator.normal(2, 3, count, 8)) for count in (queries, keys, keys))
    # One is far from the other, and both from 1, for any dtype.
    first, second = generator.shuffled([generator.uniform(1.5, 2.0), generator.uniform(2.5, 3.0)])
    factors = {"flash_attn": first, "flash_attn.cute": second}
    inputs = Installed(
        modules=library.packages,
        broken=library.broken,
        dtype=library.dtype,
        causal=causal,
        q=q,
        k=k,
        v=v,
        factors=factors,
    )
    return submission.probe(inputs, device=f"vgpu:{library.gpu}"), [q, k, v], factors


def _cause_of(submission: Submission, generator: InputGenerator) -> Cause | None:
    """The mistake that explains what attention_backend() says of all libraries."""
    every = libraries(generator)
    backends = [_installed(submission, generator, library, causal=False)[0].backend for library in every]
    for name, (mistake, hint) in _MISTAKES.items():
        if backends == [_backend(library, name) for library in every]:
            return Cause(f"library {name}", hint, _CHECK, mistake=mistake)
    return None
