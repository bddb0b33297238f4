"""Judges Lab 2's numerical tools on planted troubles, and the training of the unstable model."""

from __future__ import annotations

import numpy as np

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import recognising, require, require_arrays_close, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.shared.checks import require_passes, require_refused
from grader.lab2.stability import reference
from grader.lab2.stability.cases import gradients, loss_scale, softmax, tools
from grader.lab2.stability.cases.controls import TOOLS
from grader.lab2.stability.cases.softmax import Softmax, SoftmaxCase, SoftmaxResult
from grader.lab2.stability.cases.tools import Trace, TracedCase
from grader.lab2.stability.checks.mistakes import cause_of_scales
from grader.lab2.stability.checks.unstable import require_gains, require_steps

ROUNDING = {"float16": 1.01 * 2.0**-11, "bfloat16": 1.01 * 2.0**-8, "float32": 8e-6, "float64": 4e-12}
"""Relative error of a result: one rounding to 16 bits, and no other; wider ones with a sum and an exponential."""
_FEW_BYTES = 64
"""A number or two that somebody looks at; or else as many as half of what numbers of 16 bits take."""


@criterion("lab2.stability")
class TestStability:
    def test_formats_described(self, submission: Submission) -> None:
        rows = submission.numeric_probe(tools.Formats()).formats
        dtypes = [expected.dtype for expected in reference.FORMATS]
        require_equal([row["dtype"] for row in rows], dtypes, what="describe_formats(): dtypes")
        for row, expected in zip(rows, reference.FORMATS, strict=True):
            require_equal(row["bits"], expected.bits, what=f"bits of {expected.dtype}")
            for field, value in expected.fields().items():
                require_close(
                    dict(row)[field],
                    value,
                    relative=1e-6,
                    what=f"{field} of {expected.dtype}",
                    show=lambda value: f"{value:.9g}",
                    hint="Take max, smallest_normal and eps from torch.finfo."
                    + ("; smallest is another one, far below smallest_normal: see the README" * (field == "smallest")),
                )

    def test_softmax_stable(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = softmax.softmax(generator)
        reply = submission.numeric_probe(inputs)
        for case, result in zip(inputs.cases, reply.results, strict=True):
            _require_softmax(inputs, case, result)
        ran = sorted({*reply.softmaxes, *reply.attentions})
        require_equal(ran, [], what="operations of PyTorch's own softmax that stable_softmax() called")
        for case, result in zip(inputs.cases, reply.results, strict=True):
            require(
                result.copied_bytes is None or result.copied_bytes <= max(_FEW_BYTES, np.size(result.values)),
                f"stable_softmax() of {case.name} copies {result.copied_bytes} bytes from the device to the host",
                "Compute where x is: shift, exponentiate, add up and divide there.",
            )

    def test_nonfinite_gradients_named(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, expected_names = tools.nonfinite(generator)
        reply = submission.numeric_probe(inputs)
        for case, expected, answer in zip(inputs.cases, expected_names, reply.answers, strict=True):
            require_equal(
                answer,
                expected,
                what=f"find_nonfinite() with gradients of {case}",
                hint=(
                    "Use torch.isfinite on each gradient that is there. NaN and both infinities count; "
                    "large numbers such as 3e38, and the weights, do not."
                ),
            )

    def test_first_bad_layer_traced(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, expected_names = tools.traced(generator)
        reply = submission.numeric_probe(inputs)
        for case, expected, trace in zip(inputs.cases, expected_names, reply.traces, strict=True):
            _require_traced(case, expected, trace)
        for failure in reply.failures:
            require(failure.raised, "trace_nonfinite() of a model that raises RuntimeError did not raise it")
            what = "trace_nonfinite() of a model whose last layer fails"
            hint = "Remove the hooks and put everything else back in a finally block."
            require_equal(failure.hooks, 0, what=f"{what}: hooks left behind, without those from before", hint=hint)
            require_equal(failure.changed, [], what=f"{what}: what of the model it changed", hint=hint)

    def test_overflow_told_from_underflow(self, submission: Submission, generator: InputGenerator) -> None:
        inputs, kinds = gradients.classified(generator)
        reply = submission.numeric_probe(inputs)
        for case, expected, answer in zip(inputs.cases, kinds, reply.answers, strict=True):
            gradient, without = case.gradients["weight"], case.reference["weight"]
            lost = int(((gradient == 0) & (without != 0)).sum())
            require_equal(
                answer,
                expected,
                what=f"classify_gradients() where {lost} of {int((without != 0).sum())} live gradients are 0, "
                f"{int((without == 0).sum())} are 0 in float32 too, of a weight next to a small bias, one of which is "
                f"{case.gradients['bias'][-1]:.3g}",
                hint=(
                    "Look for numbers that are not finite first: they are an overflow. Then count the "
                    "numbers that are 0 here and not in float32, over all parameters together."
                ),
            )

    def test_loss_scale_adapts(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = loss_scale.loss_scales(generator)
        reply = submission.numeric_probe(inputs)
        with recognising(lambda: cause_of_scales(inputs, reply.scales)):
            for case, scales in zip(inputs.cases, reply.scales, strict=True):
                expected_scales = reference.scales(case.settings, case.overflows)
                for step, (scale, expected) in enumerate(zip(scales, expected_scales, strict=True)):
                    require_close(
                        scale,
                        expected,
                        relative=1e-9,
                        what=f"DynamicLossScale.scale after {step} steps with overflows at "
                        f"{[i for i, bad in enumerate(case.overflows[:step]) if bad]} and {case.settings}",
                        hint="Back off at once. Grow after growth_interval good steps in a row, and then count again.",
                    )

    def test_wrong_arguments_refused(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = loss_scale.refused(generator)
        reply = submission.numeric_probe(inputs)
        for settings, refused in zip(inputs.scales, reply.scales, strict=True):
            shown = ", ".join(f"{name}={value:.3g}" for name, value in dict(settings).items())
            require_refused(refused, settings is not inputs.scales[-1], f"DynamicLossScale({shown})")
        for count, refused in zip(inputs.epochs, reply.epochs, strict=True):
            require_refused(refused, count < 1, f"train_unstable(model, loader, {count})")

    @builds_on("nonfinite_gradients_named", "first_bad_layer_traced", "loss_scale_adapts")
    def test_unstable_model_trained(
        self, submission: Submission, generator: InputGenerator, without: frozenset[str]
    ) -> None:
        replaced = sorted(TOOLS[name] for name in without)
        require_steps(submission, generator, replaced)
        require_gains(submission, generator, replaced)
        require_passes(submission, generator, "train_unstable")


def _require_softmax(inputs: Softmax, case: SoftmaxCase, result: SoftmaxResult) -> None:
    """Fail unless one call of `stable_softmax` gave what it must, and left its argument alone."""
    x, dim, dtype = reference.softmax_argument(inputs, case), -1 if case.dim is None else case.dim, case.dtype
    # exp(x - log of the sum) is as good a way: its exponent is rounded as x is, in float32 at least.
    exponent = np.abs(x[np.isfinite(x)]).max() * 2.0 ** (-50 if dtype == "float64" else -22)
    along = "the last dimension" if case.dim is None else case.dim
    view = ", a transposed view," if case.transposed else ""
    what = f"stable_softmax() of {case.name} numbers{view} in {dtype} along {along}"
    require_equal(result.dtype, dtype, what=f"{what}: dtype of the result")
    require_arrays_close(
        result.values,
        reference.softmax(x, dim),
        rtol=ROUNDING[dtype] + min(exponent, 0.05),
        atol=2.0**-25 if dtype == "float16" else 1e-30,
        what=f"{what}, from {x.min():.3g} to {x.max():.3g}",
        hint=(
            "Subtract the maximum along dim before exp(). Compute 16-bit numbers in float32, and "
            "round once, at the end."
        ),
    )
    require(result.unchanged, f"{what} changed its argument", "Use no operation in place on x.")


def _require_traced(case: TracedCase, expected: str | None, trace: Trace) -> None:
    """Fail unless `trace_nonfinite` named the right module, and left no trace."""
    dtype = f", dtype=torch.{case.dtype}" if case.dtype else ""
    what = f"trace_nonfinite(model, inputs{dtype}) of a model in which {case}"
    require_equal(
        trace.name,
        expected,
        what=what,
        hint=(
            "Name the first module that returns such an output, in autocast. Blocks count, and so "
            'does the model itself, whose name is ""; look into tuples of tuples as well.'
        ),
    )
    require_equal(
        trace.hooks,
        0,
        what=f"{what}: hooks left behind, without those from before",
        hint="Remove each hook with handle.remove(), in a finally block.",
    )
    require_equal(
        trace.changed,
        [],
        what=f"{what}: what of the model it changed",
        hint="Put the buffers back after the pass. A batch norm in training mode counts and averages.",
    )
    require(
        not trace.other_modes,
        f"{what}: the model ran in other modes than it came in",
        (
            "Leave the modes as they are: call neither eval() nor train(). In another mode batch "
            "norm and dropout compute something else."
        ),
    )
