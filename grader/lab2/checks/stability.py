"""Judges Lab 2's numerical tools on planted troubles, and the training of the unstable model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gradebox.assertions import number, require, require_arrays_close, require_between, require_close, require_equal
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.submission import Submission
from grader.lab2.truth.training import final_scale

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2e-6, "float64": 1e-12}
"""Relative error that rounding to each dtype costs; wider ones with a sum and an exponential on the way."""

FALLS_TO = 0.7
"""Last loss / first loss of the unstable model; 0.35 to 0.40 over 14 seeds, and at least 1 when it does not learn."""
SCALING_GAINS = 0.8
"""Last loss with small gradients, scaled / not scaled; 0.56 to 0.67 over 14 seeds, and 1 when scaling does nothing."""


@criterion("lab2.stability")
class TestStability:
    def test_formats_described(self, submission: Submission) -> None:
        """Describes range and precision of each format."""
        told = submission.numeric_probe("lab2.stability.formats").formats
        truths: list[tuple[str, int, int, int]] = [  # dtype, bits, exponent of 2's largest power, fraction bits
            ("float16", 16, 15, 10),
            ("bfloat16", 16, 127, 7),
            ("float32", 32, 127, 23),
        ]
        require_equal([row["dtype"] for row in told], [truth[0] for truth in truths], what="describe_formats(): dtypes")
        for row, (dtype, bits, exponent, fraction) in zip(told, truths, strict=True):
            require_equal(row["bits"], bits, what=f"bits of {dtype}")
            wanted = {
                "largest": (2 - 2.0**-fraction) * 2.0**exponent,
                "smallest_normal": 2.0 ** (1 - exponent),
                "smallest": 2.0 ** (1 - exponent - fraction),
                "epsilon": 2.0**-fraction,
            }
            for field, value in wanted.items():
                require_close(
                    row[field],
                    value,
                    relative=1e-6,
                    what=f"{field} of {dtype}",
                    show=lambda value: f"{value:.9g}",
                    hint="torch.finfo has max, smallest_normal (alias tiny) and eps"
                    + ("; smallest is another one, far below smallest_normal: see the README" * (field == "smallest")),
                )

    def test_softmax_stable(self, submission: Submission, fresh: Fresh) -> None:
        """Computes softmax right for extreme numbers, too."""
        ordinary = fresh.normal(fresh.odd(3, 7), fresh.odd(5, 9), fresh.odd(3, 5))
        masked = ordinary * np.float32(2)
        masked[:, 0] = -np.inf
        tensors: dict[str, Any] = {
            "ordinary": ordinary,
            "large": ordinary + np.float32(fresh.uniform(2e3, 9e3)),
            "huge": ordinary * np.float32(1e37),
            "far": np.sign(ordinary) * np.float32(6e4),
            "masked": masked,
            "long": np.zeros((1, fresh.odd(70_001, 80_001)), dtype=np.float32),
        }
        cases: list[dict[str, Any]] = [
            {"name": "ordinary", "dtype": "float64", "dim": 1},
            {"name": "large", "dtype": "float32", "dim": 0},
            {"name": "huge", "dtype": "float32", "dim": -1},
            {"name": "far", "dtype": "float16", "dim": 1},
            {"name": "masked", "dtype": "float32", "dim": 1},
            {"name": "masked", "dtype": "bfloat16", "dim": 1},
            {"name": "long", "dtype": "float16", "dim": -1},
        ]
        seen = submission.numeric_probe("lab2.stability.softmax", cases=cases, **tensors)
        for index, case in enumerate(cases):
            x, dim, dtype = tensors[case["name"]].astype(np.float64), case["dim"], case["dtype"]
            if dtype == "bfloat16":
                x = _to_bfloat16(x)
            # exp(x - log of the sum) is as good a way: its exponent is rounded as x is, in float32 at least.
            exponent = np.abs(x[np.isfinite(x)]).max() * 2.0 ** (-50 if dtype == "float64" else -22)
            shifted = np.exp(x - x.max(axis=dim, keepdims=True))
            what = f"stable_softmax() of {case['name']} numbers in {dtype}"
            require_equal(seen.results[index]["dtype"], dtype, what=f"{what}: dtype of the result")
            require_arrays_close(
                seen[f"results/{index}/values"],
                shifted / shifted.sum(axis=dim, keepdims=True),
                rtol=4 * ROUNDING[dtype] + min(exponent, 0.05),
                atol=2.0**-24 if dtype == "float16" else 1e-30,
                what=f"{what}, from {x.min():.3g} to {x.max():.3g}",
                hint="subtract the maximum along dim before exp(); 16 bits are too few for a long sum",
            )

    def test_nonfinite_gradients_named(self, submission: Submission, fresh: Fresh) -> None:
        """Names the gradients that are not finite."""
        blocks = _blocks(fresh)
        names = _layers(blocks)
        cases: list[dict[str, str]] = []
        answers = []
        for _ in range(4):
            chosen = fresh.shuffled(list(range(len(names))))
            kinds = dict(zip(["nan", "inf", "-inf", "large", "none"], chosen, strict=False))
            if len(cases) == 3:
                kinds = {"large": chosen[0], "none": chosen[1]}
            cases.append({f"{names[index]}.weight": kind for kind, index in kinds.items()})
            bad = sorted(index for kind, index in kinds.items() if kind in ("nan", "inf", "-inf"))
            answers.append([f"{names[index]}.weight" for index in bad])
        seen = submission.numeric_probe("lab2.stability.nonfinite", blocks=blocks, width=fresh.odd(5, 9), cases=cases)
        for case, answer, told in zip(cases, answers, seen.answers, strict=True):
            require_equal(
                told,
                answer,
                what=f"find_nonfinite() with gradients of {case}",
                hint="NaN and both infinities count, large numbers and missing gradients do not; nothing equals NaN",
            )

    def test_first_bad_layer_traced(self, submission: Submission, fresh: Fresh) -> None:
        """Traces the first layer whose output is not finite."""
        blocks = _blocks(fresh)
        names = _layers(blocks)
        cases: list[dict[str, Any]] = []
        kinds = [("float16", False), ("float16", True)] * 3 + [("bfloat16", False), ("float32", False)]
        for number_, (dtype, pair) in enumerate(kinds):
            # Together 10^8: more than float16 can hold from the second layer on, little for the others.
            first, second = sorted(fresh.shuffled(range(len(names)))[:2])
            factor = 1e2 if number_ < 2 else 1e4
            cases.append(
                {
                    "factors": {names[first]: factor, names[second]: factor},
                    "dtype": dtype,
                    "pair": pair,
                    "training": not pair,
                    "answer": names[second] if dtype == "float16" and factor == 1e4 else None,
                }
            )
        cases = fresh.shuffled(cases)
        asked = [{key: value for key, value in case.items() if key != "answer"} for case in cases]
        seen = submission.numeric_probe("lab2.stability.trace", blocks=blocks, width=fresh.odd(5, 9), cases=asked)
        for case, told in zip(cases, seen.answers, strict=True):
            what = f"trace_nonfinite(..., dtype=torch.{case['dtype']}) with layers that multiply by {case['factors']}"
            require_equal(
                told["name"],
                case["answer"],
                what=what,
                hint="the first module to return such an output, in the order in which they return; autocast is on",
            )
            require_equal(told["hooks"], 0, what=f"{what}: hooks left behind", hint="handle.remove(), in a finally")
            require(told["unchanged"], f"{what} changed the model's mode or parameters")
        require(seen.raised, "trace_nonfinite() of a model that raises RuntimeError did not raise it")
        require_equal(
            seen.hooks_after_failure,
            0,
            what="hooks that trace_nonfinite() left behind when forward failed",
            hint="remove the handles in a finally block",
        )

    def test_overflow_told_from_underflow(self, submission: Submission, fresh: Fresh) -> None:
        """Tells overflow from underflow."""
        tensors: dict[str, Any] = {}
        cases: list[dict[str, Any]] = []
        answers: list[str] = []

        def add(answer: str, *, vanished: float, dead: float, planted: float | None = None, **options: float) -> None:
            """A case of two parameters: of the live gradients `vanished` are 0, and `dead` of all are 0 in both."""
            case: dict[str, Any] = {"gradients": {}, "reference": {}, **options}
            for name, size in (("weight", fresh.odd(1801, 2201)), ("bias", fresh.odd(11, 41))):
                reference = fresh.normal(size) * np.float32(1e-6)
                reference[np.abs(reference) < 1e-9] = np.float32(1e-9)
                reference[: int(dead * size)] = 0
                gradient = reference.copy()
                live = size - int(dead * size)
                if name == "weight":
                    gradient[size - round(vanished * live) :] = 0
                if planted is not None and name == "bias":
                    gradient[-1] = planted
                for part, values in (("gradients", gradient), ("reference", reference)):
                    key = f"{part[0]}{len(cases)}{name}"
                    tensors[key] = values
                    case[part][name] = key
            cases.append(case)
            answers.append(answer)

        kinds: list[tuple[str, dict[str, float]]] = [
            ("healthy", {"vanished": 0.0, "dead": 0.0}),
            ("healthy", {"vanished": fresh.uniform(0.01, 0.03), "dead": fresh.uniform(0.4, 0.7)}),
            ("underflow", {"vanished": fresh.uniform(0.1, 0.3), "dead": fresh.uniform(0.2, 0.5)}),
            ("underflow", {"vanished": 1.0, "dead": 0.1}),
            ("overflow", {"vanished": 0.0, "dead": 0.1, "planted": float("inf")}),
            ("overflow", {"vanished": fresh.uniform(0.3, 0.9), "dead": 0.3, "planted": float("nan")}),
            ("overflow", {"vanished": 0.0, "dead": 0.0, "planted": float("-inf")}),
            ("healthy", {"vanished": 0.3, "dead": 0.2, "share": 0.5}),
            ("underflow", {"vanished": fresh.uniform(0.02, 0.04), "dead": 0.2, "share": 0.005}),
        ]
        for answer, how in fresh.shuffled(kinds):
            add(answer, **how)
        seen = submission.numeric_probe("lab2.stability.classify", cases=cases, **tensors)
        for case, answer, told in zip(cases, answers, seen.answers, strict=True):
            gradient, reference = (tensors[case[part]["weight"]] for part in ("gradients", "reference"))
            lost = int(((gradient == 0) & (reference != 0)).sum())
            planted = tensors[case["gradients"]["bias"]][-1]
            require_equal(
                told,
                answer,
                what=f"classify_gradients() where {lost} of {int((reference != 0).sum())} live gradients are 0, "
                f"{int((reference == 0).sum())} are 0 in float32 too, and one is {planted:.3g}",
                hint="not finite: overflow. 0 here but not in float32: lost by underflow, if it is more than the share",
            )

    def test_loss_scale_adapts(self, submission: Submission, fresh: Fresh) -> None:
        """Adapts the loss scale to overflows."""
        cases: list[dict[str, Any]] = [
            {
                "settings": {
                    "initial_scale": 2.0 ** fresh.integer(8, 16),
                    "growth_factor": fresh.uniform(1.5, 3),
                    "backoff_factor": fresh.uniform(0.2, 0.7),
                    "growth_interval": fresh.integer(2, 4),
                },
                "overflows": [fresh.integer(0, 3) == 0 for _ in range(30)],
            }
            for _ in range(3)
        ]
        cases.append({"settings": {}, "overflows": [True, False, True]})
        seen = submission.numeric_probe("lab2.stability.loss_scale", cases=cases)
        for case, told in zip(cases, seen.scales, strict=True):
            settings = {
                "initial_scale": 2.0**16,
                "growth_factor": 2.0,
                "backoff_factor": 0.5,
                "growth_interval": 2000,
            } | case["settings"]
            settings["init_scale"] = settings["initial_scale"]
            happened = case["overflows"]
            for step, value in enumerate(told):
                require_close(
                    value,
                    final_scale(settings, happened[:step]),
                    relative=1e-9,
                    what=f"DynamicLossScale.scale after {step} steps with overflows at "
                    f"{[i for i, bad in enumerate(happened[:step]) if bad]} and {case['settings']}",
                    hint="back off at once; grow after growth_interval good steps in a row, then count anew",
                )

    @requires("loss_scale_adapts")
    def test_unstable_model_trained(self, submission: Submission, fresh: Fresh) -> None:
        """Trains the unstable model."""
        sizes = [96] * 6 + [fresh.odd(21, 61)]
        interval, epochs = 1000, 4
        scale = {"initial_scale": 2.0**16, "growth_interval": interval}
        seed = fresh.integer(0, 2**20)
        cases: list[dict[str, Any]] = [
            {"gain": 2.0**14, "dtype": "float16", "scale": scale},
            {"gain": 2.0**-14, "dtype": "float16", "scale": scale},
            {"gain": 2.0**-14, "dtype": "float16", "scale": None},
            {"gain": 2.0**-20, "dtype": "float16", "scale": scale},
            {"gain": 2.0**-20, "dtype": "bfloat16", "scale": None},
        ]
        places = fresh.shuffled(range(len(cases)))
        asked = [cases[place] | {"epochs": epochs, "seed": seed} for place in places]
        order = np.array(fresh.shuffled(range(1438))[: sum(sizes)])
        seen = submission.numeric_probe("lab2.stability.unstable", sizes=sizes, order=order, cases=asked)
        runs = [seen.runs[places.index(place)] for place in range(len(cases))]
        last: list[float | None] = []
        for case, run in zip(cases, runs, strict=True):
            what = f"train_unstable() with gain 2^{int(np.log2(case['gain']))} in {case['dtype']}" + (
                ", loss scaled" if case["scale"] else ""
            )
            _require_consistent(run, what, batches=len(sizes) * epochs, scaled=case["scale"] is not None)
            last.append(run["result"]["losses"][-1])
        overflows, rescued, lost, hopeless, wide = (run["result"] for run in runs)

        # Backward overflows at first: the scale comes down until it fits, then every step is taken.
        what = "steps skipped while the scale came down from 2^16"
        require_between(overflows["skipped_steps"], 2, 12, what=what, show=_whole)
        require_equal(overflows["nonfinite_layer"], None, what="nonfinite_layer where only backward overflows")
        names = set(overflows["nonfinite_parameters"])
        require(
            bool(names) and names <= set(runs[0]["names"]),
            f"nonfinite_parameters where gradients overflow: saw {sorted(names)}, parameters are {runs[0]['names']}",
            "what find_nonfinite says on the first skipped step",
        )
        # Forward overflows: no scale helps, and the layer can be named.
        require_equal(hopeless["optimizer_steps"], 0, what="steps taken where the activations overflow in float16")
        require_equal(hopeless["losses"], [None] * epochs, what="losses where no step was taken")
        require_equal(hopeless["nonfinite_layer"], "shrink", what="nonfinite_layer where the activations overflow")
        # The rest is trained without any trouble; without a scale, float16 hardly learns from small gradients.
        # An output that is large by chance may still overflow in float16, in a batch or two.
        for result, most in ((rescued, 2), (lost, 2), (wide, 0)):
            what = f"steps skipped with gain {result['gain']:.3g} in {result['dtype']}"
            require_between(result["skipped_steps"], 0, most, what=what, show=_whole)
        for index, name in ((0, "large gradients"), (1, "small gradients, scaled"), (4, "large activations, bfloat16")):
            first = number(runs[index]["result"]["losses"][0], "first loss")
            require(
                number(last[index], "last loss") < FALLS_TO * first,
                f"train_unstable() with {name}: the loss went from {first:.3g} to {last[index]:.3g} in {epochs} epochs",
                "divide the gradients by the scale, then let the optimizer make its step",
            )
            before, after = (number(runs[index][when], f"loss {when} training") for when in ("before", "after"))
            require(
                after < FALLS_TO * before,
                f"train_unstable() with {name}: over the samples that it was trained on, the model's loss went from "
                f"{before:.3g} to {after:.3g}, though it told {last[index]:.3g}",
                "the model that is passed in is trained, in place",
            )
        require(
            number(last[1], "last loss") < SCALING_GAINS * number(last[2], "last loss"),
            f"small gradients in float16: the last loss is {last[1]:.3g} with a loss scale and {last[2]:.3g} without",
            "the loss is multiplied by the scale before backward, so that gradients do not become 0",
        )


def _whole(count: float) -> str:
    return f"{count:.0f}"


def _require_consistent(run: dict[str, Any], what: str, *, batches: int, scaled: bool) -> None:
    """Fail unless a run's counts, scales and weights tell the same story."""
    result = run["result"]
    require(
        run["finite"],
        f"{what} left NaN or infinity in the weights",
        "look at the gradients before the optimizer's step, not after it, and skip the step",
    )
    require_equal(len(result["scales"]), batches, what=f"{what}: number of scales, one per batch")
    require_equal(result["optimizer_steps"] + result["skipped_steps"], batches, what=f"{what}: steps taken and skipped")
    require_equal(run["moves"], result["optimizer_steps"], what=f"{what}: how often the weights changed")
    if not scaled:
        require_equal(sorted(set(result["scales"])), [1.0], what=f"{what}: scales without loss_scale")
        return
    halved = sum(after == before / 2 for before, after in itertools.pairwise(result["scales"]))
    same = sum(after == before for before, after in itertools.pairwise(result["scales"]))
    require_equal(halved + same, batches - 1, what=f"{what}: scales that stay or are halved from batch to batch")
    require(
        result["skipped_steps"] - 1 <= halved <= result["skipped_steps"],
        f"{what}: {result['skipped_steps']} steps were skipped, but the scale was halved {halved} times",
        "update the scale once per batch, whether its step was taken or skipped",
    )


def _blocks(fresh: Fresh) -> dict[str, list[str]]:
    """Names of blocks and of the layers in each."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {
        f"block_{letters[fresh.integer(0, 25)]}{index}": [
            f"layer_{letters[fresh.integer(0, 25)]}{place}" for place in range(fresh.integer(2, 3))
        ]
        for index in range(3)
    }


def _layers(blocks: dict[str, list[str]]) -> list[str]:
    """Full names of the layers, in the order in which they run."""
    return [f"{block}.{layer}" for block, layers in blocks.items() for layer in layers]


def _to_bfloat16(x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rounded to the 8 significant bits of bfloat16, to even as hardware does."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
