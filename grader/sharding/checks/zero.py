"""Judges the sharded optimizer: against the whole one, by the bytes that ranks hold, and by what they send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import mebibytes, require, require_arrays_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.sharding.checks.common import ask, judge_refusals, kind_of, require_weights, told, truth

_STEPS = 4
_MOST = 600
"""Values of all parameters of a case."""
_RELATIVE = 2e-6
"""Of the largest weight: measured 0. Parameters in bfloat16 are rounded in the same places."""
_ROUNDING = 512
"""Bytes: the allocator's granularity, for each tensor."""
_ADAM_STATES = 2

_OPTIMIZERS: dict[str, dict[str, float]] = {
    "AdamW": {"lr": 0.05},
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "RMSprop": {"lr": 0.02, "momentum": 0.5},
    "Adagrad": {"lr": 0.1},
    "Adafactor": {"lr": 0.05},
}
"""The last one looks at rows and columns of a matrix, and so wants it whole."""


def parameter(*shape: int, group: int = 0, dtype: str = "float32", transposed: bool = False, silent: Any = ()) -> Any:
    """A parameter of a case; see `probes/parameters.py`."""
    return {"shape": list(shape), "group": group, "dtype": dtype, "transposed": transposed, "silent": list(silent)}


def _case(optimizer: str, parameters: Sequence[Any], groups: Sequence[Any] = ({},), **changed: Any) -> dict[str, Any]:
    return {
        "optimizer": optimizer,
        "options": _OPTIMIZERS[optimizer],
        "groups": list(groups),
        "parameters": list(parameters),
        "steps": _STEPS,
        "scheduler": False,
        "changed": {},
        "closure": None,
        "late": None,
        "late_options": {},
        "reloaded": None,
        **changed,
    }


def _mixed(generator: InputGenerator) -> list[Any]:
    """Parameters of two groups with everything that parameters can be, in any order."""
    silent = generator.integer(0, _STEPS - 1)
    return generator.shuffled(
        [
            parameter(generator.integer(5, 9), generator.integer(2, 6)),
            parameter(generator.integer(3, 5), generator.integer(6, 8), transposed=True),
            parameter(generator.integer(8, 12), group=1),
            parameter(generator.integer(2, 4), 3, group=1, dtype="bfloat16"),
            parameter(4, generator.integer(2, 5), silent=[silent]),
            parameter(generator.integer(3, 7), group=1, silent=range(_STEPS)),
        ]
    )


@criterion("sharding.zero")
class TestZero:
    def test_equals_unsharded(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains as the whole optimizer does."""
        one, two, three = generator.shuffled(list(_OPTIMIZERS))[:3]
        decay = {"AdamW": {"weight_decay": 0.3}, "Adafactor": {"weight_decay": 0.3}}
        few = [parameter(generator.integer(3, 6), generator.integer(3, 6)), parameter(generator.integer(3, 9))]
        cases = [
            _case(one, _mixed(generator), [{}, {"lr": generator.uniform(0.01, 0.02), **decay.get(one, {})}]),
            _case(two, _mixed(generator), [{"lr": generator.uniform(0.1, 0.2)}, {}]),
        ]
        self._require_equal(submission, generator, cases, 2)
        fewer = _case(three, generator.shuffled(few))  # two parameters for four ranks
        self._require_equal(submission, generator, [fewer], 4)

    @staticmethod
    def _require_equal(
        submission: Submission, generator: InputGenerator, cases: list[dict[str, Any]], ranks: int
    ) -> None:
        numbers, slopes = generator.normal(_MOST), generator.normal(_STEPS, _MOST)
        inputs: dict[str, Any] = {"cases": cases, "numbers": numbers, "slopes": slopes}
        seen = ask(submission, "zero.train", ranks, **inputs)
        expected = truth(submission, "train", **inputs).whole("runs")
        for rank, each in enumerate(seen):
            for case, run, whole in zip(cases, each.whole("runs"), expected, strict=True):
                require_weights(
                    run["weights"],
                    whole["weights"],
                    relative=_RELATIVE,
                    what=f"{_what(case, ranks)}: weights on rank {rank} after {case['steps']} steps",
                    hint="each owner steps with its group's options, then every rank gets its weights: whatever their "
                    "dtype and strides are, and in the same order on all ranks",
                )

    @requires("equals_unsharded")
    def test_options_followed(self, submission: Submission, generator: InputGenerator) -> None:
        """Follows schedulers, closures and changed options."""
        one, two = generator.shuffled(["AdamW", "SGD", "RMSprop"])[:2]
        group = {"lr": generator.uniform(0.01, 0.04)}
        later = {"weight_decay": generator.uniform(0.1, 0.4), _OTHER_OPTION[two]: generator.uniform(0.3, 0.6)}
        cases = [
            _case(one, _mixed(generator), [{}, group], scheduler=True),
            _case(two, _mixed(generator), [group, {}], closure=generator.integer(0, _STEPS - 1), changed=later),
        ]
        inputs: dict[str, Any] = {
            "cases": cases,
            "numbers": generator.normal(_MOST),
            "slopes": generator.normal(_STEPS, _MOST),
        }
        seen = ask(submission, "zero.train", 2, **inputs)
        expected = truth(submission, "train", **inputs).whole("runs")
        for rank, each in enumerate(seen):
            for case, run, whole in zip(cases, each.whole("runs"), expected, strict=True):
                what = f"{_what(case, 2)}, rank {rank}"
                require_equal(
                    run["closures"],
                    whole["closures"],
                    what=f"{what}: how often step(closure) called the closure, and what it returned",
                    hint="once, with gradients enabled, before anything is updated",
                )
                require_equal(
                    run["counts"], whole["counts"], what=f"{what}: parameters in each of param_groups", hint=_GROUPS
                )
                require_equal(run["options"], whole["options"], what=f"{what}: options in param_groups", hint=_GROUPS)
                require_weights(
                    run["weights"],
                    whole["weights"],
                    relative=_RELATIVE,
                    what=f"{what}: weights{_changes(case)}",
                    hint="this rank's own optimizer steps with the options that param_groups have by then",
                )

    @requires("equals_unsharded")
    def test_states_shared_out(self, submission: Submission, generator: InputGenerator) -> None:
        """Holds states of its own share only."""
        for ranks in (2, 4):
            cases, seen = _held(submission, generator, ranks)
            for case, runs in zip(cases, zip(*(each.runs for each in seen), strict=True), strict=True):
                sizes = [_bytes(one) for one in case["parameters"]]
                held = [run["bytes"] / _ADAM_STATES for run in runs]
                slack = _ROUNDING * len(sizes)
                what = f"{_what(case, ranks)} of {', '.join(f'{size:,}' for size in sizes)} bytes"
                require(
                    abs(sum(held) - sum(sizes)) <= slack,
                    f"{what}: all ranks together hold {sum(held):,.0f} bytes of each of AdamW's two states, expected "
                    f"{sum(sizes):,}",
                    "each parameter's states are on one rank, nothing of the step stays behind, and no other copies",
                )
                require(
                    max(held) - min(held) <= max(sizes) + slack,
                    f"{what}{_grouped(case)}: the ranks hold {', '.join(f'{one:,.0f}' for one in held)} bytes of each "
                    "state",
                    "balance bytes, over all groups, and neither numbers of parameters nor of their values: no rank "
                    "owns more than another and the largest one",
                )

    @requires("equals_unsharded")
    def test_each_weight_sent_once(self, submission: Submission, generator: InputGenerator) -> None:
        """Sends each weight once."""
        for ranks in (2, 4):
            cases, seen = _held(submission, generator, ranks)
            case, (run, *_) = cases[0], seen[0].runs
            size = sum(map(_bytes, case["parameters"]))
            # A byte goes around twice in an all-reduce; a rank's messages from and to one other are all but one share,
            # and shares are equal here.
            times = {"AllReduce": 2.0, "SendRecv": ranks / (ranks - 1)}
            carried = sum(one["bytes"] * times.get(kind_of(one), 1.0) for one in run["collectives"])
            sent = f"{_what(case, ranks)}: what goes around in a step is {told(run['collectives'])}"
            require(
                carried >= 0.999 * size,
                f"{sent}, expected all {size:,} bytes",
                "every rank needs what the others have updated",
            )
            require(
                carried <= 1.05 * size,
                f"{sent}, {carried / size:.2f} times the parameters' {mebibytes(size)}",
                "a broadcast from the owner, or an all-gather of shares: each weight once (an all-reduce sends twice)",
            )

    @requires("equals_unsharded")
    def test_state_saved_and_loaded(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves the whole state, and goes on from it."""
        one, two = generator.shuffled(["AdamW", "SGD", "RMSprop"])[:2]
        group = {"lr": generator.uniform(0.01, 0.04)}
        reloaded = generator.integer(1, _STEPS - 1)
        cases = [_case(kind, _mixed(generator), [{}, group], reloaded=reloaded) for kind in (one, two)]
        inputs: dict[str, Any] = {
            "cases": cases,
            "numbers": generator.normal(_MOST),
            "slopes": generator.normal(_STEPS, _MOST),
        }
        seen = ask(submission, "zero.train", 2, **inputs)
        expected = truth(submission, "train", **inputs).whole("runs")
        for rank, each in enumerate(seen):
            for case, run, whole in zip(cases, each.whole("runs"), expected, strict=True):
                what = f"{_what(case, 2)}, state_dict() on rank {rank}"
                require_equal(run["numbers"], whole["numbers"], what=f"{what}: parameters by group", hint=_WHOLE)
                require_equal(run["saved_options"], whole["saved_options"], what=f"{what}: options", hint=_WHOLE)
                require_equal(sorted(run["state"]), sorted(whole["state"]), what=f"{what}: states", hint=_WHOLE)
                for name, value in whole["state"].items():
                    require_arrays_close(
                        run["state"][name], value, rtol=1e-5, atol=1e-6, what=f"{what}: {name}", hint=_WHOLE
                    )
                require_equal(run["places"], ["cpu"], what=f"{what}: where its tensors are", hint=_WHOLE)
                require_weights(
                    run["weights"],
                    whole["weights"],
                    relative=_RELATIVE,
                    what=f"{_what(case, 2)}: weights on rank {rank}, saved and loaded before step {reloaded}",
                    hint="load_state_dict takes the states of this rank's share, by their numbers, and all options",
                )

    @requires("equals_unsharded")
    def test_late_group_shared_out(self, submission: Submission, generator: InputGenerator) -> None:
        """Takes further parameters in."""
        late = [
            parameter(generator.integer(3, 6), generator.integer(3, 6), group=1),
            parameter(generator.integer(2, 9), group=1),
            parameter(generator.integer(2, 9), group=0),
        ]
        options = {"lr": generator.uniform(0.1, 0.2)}
        step = generator.integer(1, _STEPS - 2)
        case = _case(generator.shuffled(["AdamW", "SGD"])[0], late, late=step, late_options=options)
        inputs: dict[str, Any] = {
            "cases": [case],
            "numbers": generator.normal(_MOST),
            "slopes": generator.normal(_STEPS, _MOST),
        }
        seen = ask(submission, "zero.train", 2, **inputs)
        (whole,) = truth(submission, "train", **inputs).whole("runs")
        for rank, each in enumerate(seen):
            (run,) = each.whole("runs")
            what = f"{_what(case, 2)}, a group added before step {step}, rank {rank}"
            require_equal(run["options"], whole["options"], what=f"{what}: options", hint=_GROUPS)
            require_weights(
                run["weights"],
                whole["weights"],
                relative=_RELATIVE,
                what=f"{what}: weights",
                hint="new parameters are shared out as well, and those that were there keep their states",
            )

    def test_nonsense_refused(self, submission: Submission, generator: InputGenerator) -> None:
        """Refuses arguments that make no sense."""
        case = _case("SGD", [parameter(3), parameter(4), parameter(5)])
        judge_refusals(ask(submission, "zero.refusals", 2, case=case, numbers=generator.normal(_MOST)))


_OTHER_OPTION = {"AdamW": "eps", "SGD": "momentum", "RMSprop": "alpha"}
"""Of each class, which is changed on the way."""


def _changes(case: dict[str, Any]) -> str:
    if case["scheduler"]:
        return " with StepLR, which halves lr after each step"
    changed = " and ".join(f"{name} to {value:.3g}" for name, value in case["changed"].items())
    return f", when param_groups[1] changes {changed} after step 0" if changed else ""


_GROUPS = "every rank's param_groups have all parameters and all options, with the class's defaults"
_WHOLE = (
    "on the CPU, all ranks' states under the numbers of the whole optimizer, as that one's own state_dict() has them"
)


def _held(submission: Submission, generator: InputGenerator, ranks: int) -> tuple[list[dict[str, Any]], list[Seen]]:
    """AdamW of parameters of one size, and of some whose number says nothing about their bytes."""
    generator = generator.shared(f"sharding.zero.held.{ranks}")
    side = 16 * generator.integer(2, 4)
    large, small = generator.integer(40, 64), generator.integer(1, 3)
    order = generator.shuffled([large, small])
    cases = [
        _case("AdamW", [parameter(side, 64) for _ in range(2 * ranks)]),
        _case("AdamW", [parameter(count, 64) for count in order * ranks]),  # who deals them out in turn has all
        _case("AdamW", [parameter(count, 64) for count in sorted(order * ranks)]),  # so has who cuts the list
        # Who begins anew with each group gives all of these to the first rank.
        _case("AdamW", [parameter(side, 64, group=one) for one in range(2 * ranks)], [{} for _ in range(2 * ranks)]),
    ]
    if ranks == 2:  # by numbers of values, the largest first, one rank gets all of one dtype
        dtypes = ("float32", "float64", "float64", "float32") * 2
        counts = [large + 2 * (len(dtypes) - place) for place in range(len(dtypes))]
        pairs = zip(counts, dtypes, strict=True)
        cases.append(_case("AdamW", generator.shuffled([parameter(count, 64, dtype=dtype) for count, dtype in pairs])))
    most = max(sum(_bytes(one) for one in case["parameters"]) for case in cases) // 4
    inputs: dict[str, Any] = {"numbers": generator.normal(most), "slopes": generator.normal(2, most)}
    return cases, ask(submission, "zero.held", ranks, cases=cases, **inputs)


def _bytes(told_of: Any) -> int:
    size = 8 if told_of["dtype"] == "float64" else 4
    for side in told_of["shape"]:
        size *= side
    return size


def _grouped(case: dict[str, Any]) -> str:
    groups, kinds = len(case["groups"]), sorted({one["dtype"] for one in case["parameters"]})
    return (f", each in a group of its own ({groups})" if groups > 1 else "") + (
        f", in {' and '.join(kinds)}" if len(kinds) > 1 else ""
    )


def _what(case: dict[str, Any], ranks: int) -> str:
    return f"{case['optimizer']} of {len(case['parameters'])} parameters on {ranks} ranks"
