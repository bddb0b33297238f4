"""Judges Lab 2's numerical tools on planted troubles, and the training of the unstable model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion
from gradebox.run.assertions import number, require, require_arrays_close, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.checks.planted import layers, named_blocks, planted_gradients, to_bfloat16
from grader.lab2.checks.refusals import require_refused
from grader.lab2.checks.unstable import require_consistent, require_steps, whole
from grader.shared.cases import every_value

ROUNDING = {"float16": 1.01 * 2.0**-11, "bfloat16": 1.01 * 2.0**-8, "float32": 8e-6, "float64": 4e-12}
"""Relative error of a result: one rounding to 16 bits, and no other; wider ones with a sum and an exponential."""

FALLS_TO = 0.7
"""Last loss / first loss of the unstable model; 0.35 to 0.40 over 14 seeds, and at least 1 when it does not learn."""
SCALING_GAINS = 0.8
"""Last loss with small gradients, scaled / not scaled; 0.56 to 0.67 over 14 seeds, and 1 when scaling does nothing."""


_SOFTMAX = {
    "numbers": ("ordinary", "large", "huge", "far", "masked"),
    "dtype": ("float16", "bfloat16", "float32", "float64"),
    "dim": ("not given", "first", "middle", "last"),
    "rank": (1, 3),
    "turned": (False, True),
}
_TRACED = {
    "source": ("layers", "nothing", "block", "model", "nan", "inner tuple"),
    "form": ("tensor", "pair", "nested"),
    "dtype": (None, "float16", "bfloat16", "float32"),
    "training": (False, True),
}
_SCALES = {
    "growth_interval": (None, 1, 2),
    "initial_scale": (False, True),
    "growth_factor": (False, True),
    "backoff_factor": (False, True),
    "overflows": ("none", "the first", "later ones"),
}


def _softmax_allowed(row: Mapping[str, Any]) -> bool:
    """Float16 cannot hold what is huge, and one dimension has no middle and cannot be turned."""
    held = row["numbers"] != "huge" or row["dtype"] != "float16"
    return held and (row["rank"] == 3 or (row["dim"] != "middle" and not row["turned"]))


def _softmax_case(generator: InputGenerator, row: Mapping[str, Any]) -> dict[str, Any]:
    name = f"flat_{row['numbers']}" if row["rank"] == 1 else row["numbers"]
    case: dict[str, Any] = {"name": name, "dtype": row["dtype"]}
    dims = {"first": (0, -row["rank"]), "middle": (1, -2), "last": (row["rank"] - 1, -1)}
    if row["dim"] != "not given":
        case["dim"] = generator.shuffled(dims[row["dim"]])[0]
    return case | {"turned": row["turned"]}


def _scale_case(generator: InputGenerator, row: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which some are not given, and steps of which some overflow, once or several times in a row."""
    drawn = {
        "initial_scale": 2.0 ** generator.integer(8, 16),
        "growth_factor": generator.uniform(1.5, 3),
        "backoff_factor": generator.uniform(0.2, 0.7),
    }
    settings: dict[str, Any] = {name: value for name, value in drawn.items() if row[name]}
    if row["growth_interval"] is not None:
        settings["growth_interval"] = row["growth_interval"]
    first = [True] * generator.integer(1, 2)
    bad: dict[str, list[bool]] = {"none": [], "the first": first, "later ones": [*[False] * 3, *first]}
    return {"settings": settings, "overflows": [*bad[row["overflows"]], *[False] * 9]}


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

    def test_softmax_stable(self, submission: Submission, generator: InputGenerator) -> None:
        """Computes softmax right for extreme numbers, too."""
        ordinary = generator.normal(generator.odd(3, 7), generator.odd(5, 9), generator.odd(3, 5))
        masked = ordinary * np.float32(2)
        masked[np.indices(masked.shape).sum(axis=0) % 3 == 0] = -np.inf  # one number at least is finite, along any dim
        tensors: dict[str, Any] = {
            "ordinary": ordinary,
            "large": ordinary + np.float32(generator.uniform(2e3, 9e3)),
            "huge": ordinary * np.float32(1e37),
            "far": np.sign(ordinary) * np.float32(6e4),
            "masked": masked,
            "long": np.zeros((1, generator.odd(70_001, 80_001)), dtype=np.float32),
            "flat": generator.normal(generator.odd(21, 31)) * np.float32(2),
        }
        tensors |= {f"flat_{name}": tensors[name][1, :, 1] for name in ("ordinary", "large", "huge", "far", "masked")}
        cases: list[dict[str, Any]] = [
            {"name": "ordinary", "dtype": "float64", "dim": 1},
            {"name": "ordinary", "dtype": "float16", "dim": -2},
            {"name": "ordinary", "dtype": "bfloat16", "dim": 0, "turned": True},
            {"name": "flat", "dtype": "float16"},
            {"name": "ordinary", "dtype": "float32"},
            {"name": "large", "dtype": "float32", "dim": 0},
            {"name": "huge", "dtype": "float32", "dim": -1},
            {"name": "far", "dtype": "float16", "dim": -1},
            {"name": "masked", "dtype": "float32", "dim": 1},
            {"name": "masked", "dtype": "bfloat16", "dim": 1},
            {"name": "long", "dtype": "float16", "dim": -1},
            *(_softmax_case(generator, row) for row in generator.cases(_SOFTMAX, 5, _softmax_allowed)),
        ]
        seen = submission.numeric_probe("lab2.stability.softmax", cases=cases, **tensors)
        for index, case in enumerate(cases):
            x, dim, dtype = tensors[case["name"]].astype(np.float64), case.get("dim", -1), case["dtype"]
            x = np.swapaxes(x, 0, -1) if case.get("turned") else x
            if dtype == "bfloat16":
                x = to_bfloat16(x)
            elif dtype == "float16":
                x = x.astype(np.float16).astype(np.float64)
            # exp(x - log of the sum) is as good a way: its exponent is rounded as x is, in float32 at least.
            exponent = np.abs(x[np.isfinite(x)]).max() * 2.0 ** (-50 if dtype == "float64" else -22)
            shifted = np.exp(x - x.max(axis=dim, keepdims=True))
            along = case.get("dim", "the last dimension")
            turned = ", a transposed view," * bool(case.get("turned"))
            what = f"stable_softmax() of {case['name']} numbers{turned} in {dtype} along {along}"
            require_equal(seen.results[index]["dtype"], dtype, what=f"{what}: dtype of the result")
            require_arrays_close(
                seen[f"results/{index}/values"],
                shifted / shifted.sum(axis=dim, keepdims=True),
                rtol=ROUNDING[dtype] + min(exponent, 0.05),
                atol=2.0**-25 if dtype == "float16" else 1e-30,
                what=f"{what}, from {x.min():.3g} to {x.max():.3g}",
                hint="subtract the maximum along dim before exp(); compute 16 bits in float32, and round once",
            )
            require(seen.results[index]["unchanged"], f"{what} changed its argument", "no operation in place on x")
        require_equal(seen.softmaxes, [], what="operations of PyTorch's own softmax that stable_softmax() called")

    def test_nonfinite_gradients_named(self, submission: Submission, generator: InputGenerator) -> None:
        """Names the gradients that are not finite."""
        blocks = named_blocks(generator)
        names = layers(blocks)
        cases: list[dict[str, str]] = []
        answers = []
        rows = generator.cases(dict.fromkeys(("nan", "inf", "-inf", "large", "none", "weight"), (False, True)), 2)
        for _ in range(6):
            chosen = generator.shuffled(list(range(len(names))))
            kinds = dict(zip(["nan", "inf", "-inf", "large", "none", "weight"], chosen, strict=False))
            if len(cases) == 2:
                kinds = {generator.shuffled(("nan", "inf", "-inf"))[0]: chosen[0]}
            elif len(cases) == 3:
                kinds = {"large": chosen[0], "none": chosen[1], "weight": chosen[2]}
            elif len(cases) > 3:
                kinds = dict(zip([kind for kind, there in rows.pop().items() if there], chosen, strict=False))
            cases.append({f"{names[index]}.weight": kind for kind, index in kinds.items()})
            bad = sorted(index for kind, index in kinds.items() if kind in ("nan", "inf", "-inf"))
            answers.append([f"{names[index]}.weight" for index in bad])
        seen = submission.numeric_probe(
            "lab2.stability.nonfinite", blocks=blocks, width=generator.odd(5, 9), cases=cases
        )
        for case, answer, told in zip(cases, answers, seen.answers, strict=True):
            require_equal(
                told,
                answer,
                what=f"find_nonfinite() with gradients of {case}",
                hint="NaN and both infinities count, large numbers (3e38), missing gradients and the weights do "
                "not; nothing equals NaN",
            )

    def test_first_bad_layer_traced(self, submission: Submission, generator: InputGenerator) -> None:
        """Traces the first layer whose output is not finite."""
        blocks = named_blocks(generator)
        names = layers(blocks)
        first, second = sorted(generator.shuffled(range(len(names)))[:2])
        block = list(blocks)[generator.integer(0, len(blocks) - 1)]
        # Together 10^8: more than float16 can hold from the second layer on, little for the others.
        two = {"factors": {names[first]: 1e4, names[second]: 1e4}}
        fine = {"factors": {names[first]: 1e2, names[second]: 1e2}}
        cases: list[dict[str, Any]] = [
            {**two, "form": "tensor", "dtype": "float16", "answer": names[second]},
            {**fine, "form": "pair", "answer": None},
            {**two, "dtype": "bfloat16", "answer": None},
            {**two, "dtype": "float32", "answer": None},
            # No layer returns it, but the block around them, or the model around those.
            {"owns": {block: 1e6}, "form": generator.shuffled(["tensor", "pair", "nested"])[0], "answer": block},
            {"owns": {block: "nan"}, "dtype": "float32", "answer": block},
            {"owns": {"": "-inf"}, "form": "pair", "dtype": "bfloat16", "answer": ""},
            {"side": 1e6, "form": "nested", "answer": next(iter(blocks))},
        ]
        places = generator.shuffled(range(len(cases)))
        cases = [cases[index] | {"training": bool(place % 2)} for place, index in enumerate(places)]
        sources: dict[str, tuple[dict[str, Any], str | None]] = {
            "layers": (two, names[second]),
            "nothing": (fine, None),
            "block": ({"owns": {block: 1e6}}, block),
            "model": ({"owns": {"": 1e6}}, ""),
            "nan": ({"owns": {block: "nan"}}, block),
            "inner tuple": ({"side": 1e6}, next(iter(blocks))),
        }
        for row in generator.cases(_TRACED, 3, lambda row: row["source"] != "inner tuple" or row["form"] == "nested"):
            source, answer = sources[row["source"]]
            narrow = row["dtype"] in (None, "float16") or row["source"] == "nan"  # the others hold 10^8
            case = {**source, "form": row["form"], "training": row["training"], "answer": answer if narrow else None}
            cases.append(case | ({"dtype": row["dtype"]} if row["dtype"] else {}))
        asked = [{key: value for key, value in case.items() if key != "answer"} for case in cases]
        inputs = generator.normal(generator.odd(3, 7), generator.odd(5, 9))
        inputs[0] = 1.0
        seen = submission.numeric_probe(
            "lab2.stability.trace", blocks=blocks, width=inputs.shape[1], inputs=inputs, cases=asked
        )
        for case, told in zip(cases, seen.answers, strict=True):
            dtype = f", dtype=torch.{case['dtype']}" if "dtype" in case else ""
            told_of = ", ".join(f"{key}={case[key]}" for key in ("factors", "owns", "side", "form") if key in case)
            what = f"trace_nonfinite(model, inputs{dtype}) where the numbers are made large by {told_of}"
            require_equal(
                told["name"],
                case["answer"],
                what=what,
                hint="the first module to return such an output, in the order in which they return, blocks and the "
                'model itself (named "") included; look into tuples of tuples; autocast is on',
            )
            require_equal(
                told["hooks"],
                0,
                what=f"{what}: hooks left behind, less those that were there",
                hint="handle.remove(), in a finally",
            )
            require_equal(
                told["changed"],
                [],
                what=f"{what}: what of the model it changed",
                hint="a batch norm in training mode counts and averages: put its buffers back",
            )
            require(
                not told["other_modes"],
                f"{what}: the model ran in other modes than it came in",
                "a batch norm or a dropout computes something else then: no eval() for the pass that is looked at",
            )
        for told in seen.failures:
            require(told["raised"], "trace_nonfinite() of a model that raises RuntimeError did not raise it")
            what = "trace_nonfinite() of a model whose last layer fails"
            hint = "take the hooks away and put all else back in a finally block"
            require_equal(told["hooks"], 0, what=f"{what}: hooks left behind, less those that were there", hint=hint)
            require_equal(told["changed"], [], what=f"{what}: what of the model it changed", hint=hint)

    def test_overflow_told_from_underflow(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells overflow from underflow."""
        cases, answers, tensors = planted_gradients(generator)
        seen = submission.numeric_probe("lab2.stability.classify", cases=cases, **tensors)
        for case, answer, told in zip(cases, answers, seen.answers, strict=True):
            gradient, reference = (tensors[case[part]["weight"]] for part in ("gradients", "reference"))
            lost = int(((gradient == 0) & (reference != 0)).sum())
            planted = tensors[case["gradients"]["bias"]][-1]
            require_equal(
                told,
                answer,
                what=f"classify_gradients() where {lost} of {int((reference != 0).sum())} live gradients are 0, "
                f"{int((reference == 0).sum())} are 0 in float32 too, of a weight beside a small bias, one of which is "
                f"{planted:.3g}",
                hint="not finite: overflow. 0 here but not in float32: lost by underflow, if it is more than the share",
            )

    def test_loss_scale_adapts(self, submission: Submission, generator: InputGenerator) -> None:
        """Adapts the loss scale to overflows."""
        cases: list[dict[str, Any]] = [
            {
                "settings": {
                    "initial_scale": 2.0 ** generator.integer(8, 16),
                    "growth_factor": generator.uniform(1.5, 3),
                    "backoff_factor": generator.uniform(0.2, 0.7),
                    "growth_interval": interval,
                },
                "overflows": [generator.integer(0, 3) == 0 for _ in range(30)],
            }
            for interval in (1, generator.integer(2, 3), generator.integer(3, 5))
        ]
        cases.append({"settings": {}, "overflows": [True, *[False] * 2001, True]})
        cases += [_scale_case(generator, row) for row in every_value(generator, _SCALES, 3)]
        seen = submission.numeric_probe("lab2.unstable.loss_scale", cases=cases)
        for case, told in zip(cases, seen.scales, strict=True):
            settings = {
                "initial_scale": 2.0**16,
                "growth_factor": 2.0,
                "backoff_factor": 0.5,
                "growth_interval": 2000,
            } | case["settings"]
            settings["init_scale"] = settings["initial_scale"]
            happened = case["overflows"]
            wanted = settings["init_scale"]
            good = 0
            for step, value in enumerate(told):
                if step:
                    good = 0 if happened[step - 1] else good + 1
                    if happened[step - 1]:
                        wanted *= settings["backoff_factor"]
                    elif good == settings["growth_interval"]:
                        wanted, good = wanted * settings["growth_factor"], 0
                require_close(
                    value,
                    wanted,
                    relative=1e-9,
                    what=f"DynamicLossScale.scale after {step} steps with overflows at "
                    f"{[i for i, bad in enumerate(happened[:step]) if bad]} and {case['settings']}",
                    hint="back off at once; grow after growth_interval good steps in a row, then count anew",
                )

    def test_wrong_arguments_refused(self, submission: Submission, generator: InputGenerator) -> None:
        """Refuses arguments that make no sense."""
        scales: list[dict[str, float]] = [
            {"initial_scale": 0.0},
            {"initial_scale": -generator.uniform(1, 9)},
            {"growth_factor": 1.0},
            {"growth_factor": generator.uniform(-1, 0.9)},
            {"backoff_factor": 0.0},
            {"backoff_factor": 1.0},
            {"backoff_factor": generator.shuffled((-generator.uniform(0.1, 2), generator.uniform(1.1, 3)))[0]},
            {"growth_interval": 0},
            {"growth_interval": -generator.integer(1, 9)},
        ]
        # Those that make sense come last: whoever refuses everything has looked at nothing.
        taken = {
            "initial_scale": generator.uniform(0.1, 0.9),
            "growth_factor": generator.uniform(1.1, 3),
            "backoff_factor": generator.uniform(0.1, 0.9),
            "growth_interval": 1,
        }
        epochs = [0, -generator.integer(1, 3)]
        seen = submission.numeric_probe(
            "lab2.arguments.stability_refused", scales=[*scales, taken], epochs=[*epochs, 1]
        )
        for one, told in zip([*scales, taken], seen.scales, strict=True):
            shown = ", ".join(f"{name}={value:.3g}" for name, value in one.items())
            require_refused(told, one is not taken, f"DynamicLossScale({shown})")
        for count, told in zip([*epochs, 1], seen.epochs, strict=True):
            require_refused(told, count < 1, f"train_unstable(model, loader, {count})")

    @builds_on("nonfinite_gradients_named", "first_bad_layer_traced", "loss_scale_adapts")
    def test_unstable_model_trained(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains the unstable model."""
        require_steps(submission, generator)
        sizes = [96] * 6 + [generator.odd(21, 61)]
        interval, epochs = 1000, 4
        scale = {"initial_scale": 2.0**16, "growth_interval": interval}
        seed = generator.integer(0, 2**20)
        cases: list[dict[str, Any]] = [
            {"gain": 2.0**14, "dtype": "float16", "scale": scale},
            {"gain": 2.0**-14, "dtype": "float16", "scale": scale},
            {"gain": 2.0**-14, "dtype": "float16", "scale": None},
            {"gain": 2.0**-20, "dtype": "float16", "scale": scale},
            {"gain": 2.0**-20, "dtype": "bfloat16", "scale": None},
            {"gain": 2.0**-20, "dtype": "float16", "scale": None},
        ]
        places = generator.shuffled(range(len(cases)))
        asked = [cases[place] | {"epochs": epochs, "seed": seed} for place in places]
        order = np.array(generator.shuffled(range(1438))[: sum(sizes)])
        seen = submission.numeric_probe("lab2.unstable.unstable", sizes=sizes, order=order, cases=asked)
        runs = [seen.runs[places.index(place)] for place in range(len(cases))]
        last: list[float | None] = []
        for case, run in zip(cases, runs, strict=True):
            what = f"train_unstable() with gain 2^{int(np.log2(case['gain']))} in {case['dtype']}" + (
                ", loss scaled" if case["scale"] else ""
            )
            require_equal(run["result"]["dtype"], case["dtype"], what=f"{what}: StabilityRun.dtype")
            require_equal(float(run["result"]["gain"]), case["gain"], what=f"{what}: StabilityRun.gain")
            require_consistent(run, what, batches=len(sizes) * epochs, scaled=case["scale"] is not None)
            last.append(run["result"]["losses"][-1])
        overflows, rescued, lost, hopeless, wide, alone = (run["result"] for run in runs)

        # Backward overflows at first: the scale comes down until it fits, then every step is taken.
        what = "steps skipped while the scale came down from 2^16"
        require_between(overflows["skipped_steps"], 2, 12, what=what, show=whole)
        require_equal(overflows["nonfinite_layer"], None, what="nonfinite_layer where only backward overflows")
        names = set(overflows["nonfinite_parameters"])
        require(
            bool(names) and names <= set(runs[0]["names"]),
            f"nonfinite_parameters where gradients overflow: saw {sorted(names)}, parameters are {runs[0]['names']}",
            "what find_nonfinite says on the first skipped step",
        )
        # Forward overflows: no scale helps, and the layer can be named.
        for one, scaled in ((hopeless, "with"), (alone, "without")):
            what = f"where the activations overflow in float16, {scaled} loss_scale"
            require_equal(one["optimizer_steps"], 0, what=f"steps taken {what}")
            require_equal(one["losses"], [None] * epochs, what=f"losses {what}, when no step was taken")
            require_equal(one["nonfinite_layer"], "shrink", what=f"nonfinite_layer {what}")
        # The rest is trained without any trouble; without a scale, float16 hardly learns from small gradients.
        # An output that is large by chance may still overflow in float16, in a batch or two.
        for result, most in ((rescued, 2), (lost, 2), (wide, 0)):
            what = f"steps skipped with gain {result['gain']:.3g} in {result['dtype']}"
            require_between(result["skipped_steps"], 0, most, what=what, show=whole)
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
