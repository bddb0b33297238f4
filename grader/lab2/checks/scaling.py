"""Judges Lab 2's gradient scaling by what it does to weights, scheduler and scale, however it is written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradebox.assertions import number, require, require_arrays_close, require_between, require_close, require_equal
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.lab2.truth.training import Run, final_scale, regression, require_accurate, require_ran

TRAINS = "lab2.amp.returns_result"
PATIENT = 1000
"""A growth interval that no run here reaches."""
LOW_PRECISION = 0.03
"""Relative: float16 and bfloat16 round each product by 0.05 % and 0.4 %; no mistake looked for is below 30 %."""
ORDER_HINT = "per window: backward of the scaled loss, unscale_, clip, step, update"


@criterion("lab2.scaling")
class TestScaling:
    @requires(TRAINS)
    def test_clipping_sees_unscaled_gradients(self, submission: Submission, fresh: Fresh) -> None:
        """Clips gradients without the loss scale."""
        case = regression(fresh)
        run: Run = {"sizes": [fresh.odd(15, 31)], "rate": 0.5, "scaler": {"init_scale": 2.0 ** fresh.integer(5, 7)}}
        norm = float(np.linalg.norm(case.gradient(case.start, slice(0, run["sizes"][0]))))
        limits = [fresh.uniform(0.1, 0.5) * norm, 3 * norm]
        runs = [
            run | {"dtype": dtype, "max_grad_norm": limit}
            for dtype in ("float16", "bfloat16", "float32")
            for limit in limits
        ]
        for one, seen in zip(runs, case.train(submission, runs), strict=True):
            limit = one["max_grad_norm"]
            require_close(
                float(np.linalg.norm(np.subtract(seen["after"], seen["before"][0]))) / run["rate"],
                min(limit, norm),
                relative=LOW_PRECISION,
                what=f"length of an SGD step / learning rate in {one['dtype']}, where the gradient's norm is "
                f"{norm:.4g} and max_grad_norm {limit:.4g}",
                show=lambda value: f"{value:.4g}",
                hint=f"clipping must see gradients without the loss scale; {ORDER_HINT}",
            )

    @requires(TRAINS)
    def test_overflow_skips_the_step(self, submission: Submission, fresh: Fresh) -> None:
        """Skips the step of a batch that overflows."""
        seen, scale, spoiled = _overflow(submission, fresh)
        batches = len(spoiled)
        # The forward pass of batch i sees the weights that batch i - 1 left; the end comes after the last one.
        states = [*seen["before"], seen["after"]]
        require(
            all(np.isfinite(state).all() for state in states),
            "a batch that overflows in float16 left NaN or infinity in the weights",
            "look for gradients that are not finite before the optimizer's step, and skip it",
        )
        moved = [bool(np.any(np.not_equal(one, other))) for one, other in itertools.pairwise(states)]
        require_equal(
            moved,
            [not overflows for overflows in spoiled],
            what=f"whether each of {batches} batches changed the weights, when {_which(spoiled)} in float16",
            hint=ORDER_HINT,
        )
        require_ran(seen, "float16", taken=batches - sum(spoiled), skipped=sum(spoiled))
        require_equal(
            number(seen["result"]["final_scale"], "AmpTraining.final_scale"),
            scale / 2 ** sum(spoiled),
            what=f"AmpTraining.final_scale after {sum(spoiled)} overflows, where the scaler began with {scale:g}",
            hint="update() once per step; it halves the scale after an overflow",
        )
        number(seen["result"]["losses"][0], "AmpTraining.losses[0] of an epoch in which one step was skipped")

    @requires(TRAINS)
    def test_scheduler_waits_for_the_optimizer(self, submission: Submission, fresh: Fresh) -> None:
        """Moves the schedule with taken steps only."""
        seen, _, spoiled = _overflow(submission, fresh)
        require_equal(
            seen["scheduler_steps"],
            len(spoiled) - sum(spoiled),
            what=f"steps of the scheduler over {len(spoiled)} batches, when {_which(spoiled)} in float16",
            hint="only after a step that was taken: compare the scale before and after update()",
        )
        case = regression(fresh)
        window, epochs = fresh.integer(2, 3), fresh.integer(2, 4)
        batches = window * fresh.integer(2, 3) + 1
        run: Run = {"dtype": "bfloat16", "sizes": [fresh.odd(3, 5) for _ in range(batches)], "rate": 0.01}
        run |= {"accumulation_steps": window, "scheduler": True, "epochs": epochs}
        (seen,) = case.train(submission, [run])
        require_equal(
            seen["scheduler_steps"],
            epochs * -(-batches // window),
            what=f"steps of the scheduler over {epochs} epochs of {batches} batches, with accumulation_steps={window}",
            hint="once per optimizer step, not per batch or epoch",
        )

    @requires(TRAINS)
    def test_scale_follows_its_settings(self, submission: Submission, fresh: Fresh) -> None:
        """Lets the loss scale follow its settings."""
        case = regression(fresh)
        runs: list[Run] = []
        overflows = []
        for _ in range(3):
            # One window overflows, then good ones make the scale grow; the last one has a single batch.
            bad, good = fresh.integer(0, 1), fresh.integer(3, 5)
            settings = {
                "init_scale": 2.0 ** fresh.integer(1, 4),
                "growth_factor": 2.0 ** fresh.integer(1, 2),
                "backoff_factor": 2.0 ** -fresh.integer(1, 3),
                "growth_interval": 2,
            }
            runs.append(
                {
                    "dtype": "float16",
                    "sizes": [fresh.integer(3, 4) for _ in range(2 * (bad + 1 + good) - 1)],
                    "rate": 1e-3,
                    "accumulation_steps": 2,
                    "max_grad_norm": 1e6,
                    "scaler": settings,
                    "spoiled": [2 * bad + fresh.integer(0, 1)],
                }
            )
            overflows.append([*[False] * bad, True, *[False] * good])
        for run, happened, seen in zip(runs, overflows, case.train(submission, runs), strict=True):
            require_ran(seen, "float16", taken=len(happened) - 1, skipped=1)
            require_equal(
                number(seen["result"]["final_scale"], "AmpTraining.final_scale"),
                final_scale(run["scaler"], happened),
                what=f"AmpTraining.final_scale after {len(happened)} windows, when {_which(happened)}, with "
                f"{run['scaler']}",
                hint="update() once per window: a window is one step, however many batches it has",
            )

    @requires(TRAINS)
    def test_accumulation_equals_one_large_batch(self, submission: Submission, fresh: Fresh) -> None:
        """Accumulates as if in one large batch."""
        case = regression(fresh)
        sizes = [
            fresh.integer(2, 4),
            fresh.integer(6, 9),
            fresh.integer(5, 7),
            fresh.integer(2, 3),
            fresh.integer(4, 8),
        ]
        exact: Run = {
            "dtype": "float32",
            "wide": True,
            "sizes": sizes,
            "rate": 0.05,
            "epochs": 2,
            "accumulation_steps": 2,
        }
        low: Run = {
            "dtype": "float16",
            "sizes": sizes[:3],
            "rate": 0.05,
            "accumulation_steps": 3,
            "max_grad_norm": 1e6,
            "scaler": {"init_scale": 2.0**6, "growth_interval": PATIENT},
        }
        in_float64, in_float16 = case.train(submission, [exact, low])
        truth = case.follow(exact)
        require_ran(in_float64, "float32", taken=6, skipped=0)
        hint = "the mean over all samples of the window, the short last window included: weigh each batch by its "
        "share, and clear the gradients once per window"
        require_arrays_close(
            in_float64["after"],
            truth.weights[-1].ravel(),
            rtol=1e-9,
            atol=1e-12,
            what=f"weights after two epochs of batches of {sizes} in float64, with accumulation_steps=2",
            hint=hint,
        )
        require_arrays_close(
            in_float64["result"]["losses"],
            truth.losses,
            rtol=1e-6,
            what="AmpTraining.losses of that training, the mean over all samples of an epoch",
            hint="a loss that was divided for accumulation is no longer the batch's mean",
        )
        step = np.subtract(in_float16["after"], in_float16["before"][0])
        wanted = (case.follow(low).weights[-1] - case.start).ravel()
        require_between(
            float(np.linalg.norm(step - wanted) / np.linalg.norm(wanted)),
            0,
            LOW_PRECISION,
            what="relative error of one step in float16 from three batches, clipped at a norm that is never reached",
            hint=f"gradients add up while they are scaled; {ORDER_HINT}",
        )

    @requires(TRAINS)
    def test_small_gradients_survive(self, submission: Submission, fresh: Fresh) -> None:
        """Loses no small gradients in float16."""
        case, factor = regression(fresh), 2.0**-26
        run: Run = {"sizes": [fresh.odd(15, 31)], "rate": 0.1 / factor, "factor": factor}
        wanted = -0.1 * case.gradient(case.start, slice(0, run["sizes"][0])).ravel()
        runs = [run | {"dtype": dtype} for dtype in ("float16", "bfloat16")]
        for one, seen in zip(runs, case.train(submission, runs), strict=True):
            step = np.subtract(seen["after"], seen["before"][0])
            require_between(
                float(np.linalg.norm(step - wanted) / np.linalg.norm(wanted)),
                0,
                LOW_PRECISION,
                what=f"relative error of a step in {one['dtype']} from gradients of about 1e-9, without a given scaler",
                hint="float16 knows nothing between 0 and 6e-8: the loss must be scaled before backward",
            )

    @requires(TRAINS)
    def test_only_float16_is_scaled(self, submission: Submission, fresh: Fresh) -> None:
        """Scales the loss in float16 only."""
        case, scale = regression(fresh), 2.0 ** fresh.integer(9, 10)
        run: Run = {"sizes": [fresh.odd(9, 15)], "rate": 0.01, "scaler": {"init_scale": scale}}
        samples = run["sizes"][0]
        largest = float(np.abs(case.difference(case.start, slice(0, samples))).max()) / samples
        runs = [run | {"dtype": dtype} for dtype in ("float32", "float16", "bfloat16")]
        for one, seen in zip(runs, case.train(submission, runs), strict=True):
            scaled = one["dtype"] == "float16"
            wanted = largest * (scale if scaled else 1.0)
            require_between(
                max(seen["largest_gradients"], default=0.0),
                wanted * (1 - LOW_PRECISION),
                wanted * (1 + LOW_PRECISION) * samples,  # of those who add up losses and divide the gradients later
                what=f"largest gradient of the outputs in backward with dtype=torch.{one['dtype']}, a scaler of "
                f"{scale:g} being given",
                show=lambda value: f"{value:.4g}",
                hint="float16 needs the loss multiplied by the scale; bfloat16 has float32's range and does not",
            )
            if not scaled:
                require_equal(
                    seen["result"]["final_scale"], None, what=f"AmpTraining.final_scale with dtype=torch.{one['dtype']}"
                )

    @requires(TRAINS)
    def test_float16_as_accurate_as_float32(self, submission: Submission, fresh: Fresh) -> None:
        """Is as accurate in float16 as in float32."""
        require_accurate(submission, fresh, "float16")


def _overflow(submission: Submission, fresh: Fresh) -> tuple[dict[str, Any], float, list[bool]]:
    """Batches in float16, one or two of which overflow; also the scale they began with, and which batches those are."""
    fresh = fresh.shared("lab2.overflow")
    case, scale = regression(fresh), 2.0 ** fresh.integer(4, 7)
    batches = fresh.integer(5, 8)
    bad = fresh.shuffled(range(1, batches - 1))[: fresh.integer(1, 2)]  # steps are taken before and after
    run: Run = {
        "dtype": "float16",
        "sizes": [fresh.odd(3, 7) for _ in range(batches)],
        "rate": 0.05,
        "scaler": {"init_scale": scale, "growth_interval": PATIENT},
        "spoiled": bad,
        "scheduler": True,
    }
    (seen,) = case.train(submission, [run])
    return seen, scale, [index in bad for index in range(batches)]


def _which(overflows: Sequence[bool]) -> str:
    """`number 2 overflows`, `numbers 2 and 4 overflow`; counted from 1."""
    numbers = [str(index) for index, bad in enumerate(overflows, start=1) if bad]
    return f"number {numbers[0]} overflows" if len(numbers) == 1 else f"numbers {' and '.join(numbers)} overflow"
