"""Judges what is predicted of memory and messages, the share of messages that is hidden, the program and the report."""

from __future__ import annotations

from typing import Any

from gradebox.course.criterion import criterion
from gradebox.run.assertions import CheckFailed, require, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox import Limits
from grader.sharding.checks.common import RANKS
from grader.shared import reports
from grader.shared.programs import picture_and_json, require_provenance, require_simulated_pictures

_EXACT = 1e-9
_LAB = "sharding_exercise"
_WRITE = "what each way holds and sends, why it is what was predicted or more, and what is hidden"
_STAGES = (0, 1, 2, 3)
_METHODS = {"DDP": 0, "ZeRO-1": 1, "FSDP2": 3}
_PROGRAM = Limits(wall_seconds=300.0, cpu_seconds=300.0)
"""Each rank attaches a virtual GPU of its own; measured: 15 s of processor time."""
_PAPER = {"parameters": 7_500_000_000, "ranks": 64}
"""Table 1 of arXiv:1910.02054: 120, 31.4, 16.6 and 1.9 GB."""
_KINDS: reports.Kinds = {
    "device": (str,),
    "ranks": (int,),
    "held_share": (int, float),
    "sent_ratio": (int, float),
    "predicted_gb": (int, float),
}


@criterion("sharding.analysis")
class TestAnalysis:
    def test_memory_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts what a rank holds."""
        count = generator.integer(10**6, 10**9)
        own = {
            "parameter_bytes": 4,
            "gradient_bytes": generator.integer(5, 7),
            "optimizer_bytes": generator.integer(8, 11),
        }
        memory: list[dict[str, Any]] = [{**_PAPER, "stage": stage} for stage in _STAGES]
        memory += [{"parameters": count, "ranks": generator.odd(3, 99), "stage": stage, **own} for stage in _STAGES]
        memory.append({"parameters": count, "ranks": 1, "stage": generator.integer(1, 3)})
        largest: list[dict[str, Any]] = [{"memory_bytes": 32e9, "ranks": 64, "stage": stage} for stage in _STAGES]
        largest.append({"memory_bytes": generator.uniform(1e9, 9e10), "ranks": generator.odd(3, 99), "stage": 2})
        right = {"parameters": count, "ranks": 4, "stage": 1}
        nonsense = [
            *({"name": "memory_per_rank", "arguments": {**right, **wrong}} for wrong in _WRONG),
            {"name": "largest_model", "arguments": {"memory_bytes": 1.0, "ranks": 1, "stage": 0}},
            {"name": "largest_model", "arguments": {"memory_bytes": 1e9, "ranks": 1, "stage": 4}},
        ]
        seen = submission.probe(
            "sharding.analysis.predicted", device="cpu", memory=memory, largest=largest, sent=[], nonsense=nonsense
        )
        for case, found in zip(memory, seen.memory, strict=True):
            what = f"memory_per_rank({_told(case)})"
            for name, wanted in _memory(**case).items():
                require_close(found[name], wanted, relative=_EXACT, what=f"{what}: {name}", hint=_SHARED)
        for case, model in zip(largest, seen.largest, strict=True):
            what = f"largest_model({_told(case)})"
            wanted = case["memory_bytes"] / _memory(1, case["ranks"], case["stage"])["total_bytes"]
            require(isinstance(model, int), f"{what}: saw {model!r}, expected a whole number")
            # A bound that is met exactly may be missed by one for rounding.
            low, high = wanted - 1 - 1e-9 * wanted, wanted + 1e-9 * wanted
            hint = "what one parameter takes, states included, is memory_per_rank's total of one"
            require_between(model, low, high, what=what, expected=f"{wanted:,.0f}", hint=hint)
        _require_refused(nonsense, seen)

    def test_messages_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        """Predicts what a rank sends."""
        count, size = generator.integer(10**6, 10**9), generator.integer(3, 8)
        sent: list[dict[str, Any]] = [
            {"parameters": count, "ranks": generator.odd(3, 99), "stage": stage, "element_bytes": size}
            for stage in _STAGES
        ]
        sent += [{"parameters": count, "ranks": 2, "stage": generator.integer(0, 3)}]
        sent += [{"parameters": count, "ranks": 1, "stage": stage} for stage in (0, 3)]
        right = {"parameters": count, "ranks": 4, "stage": 1}
        nonsense = [{"name": "sent_per_rank", "arguments": {**right, **wrong}} for wrong in _WRONG]
        seen = submission.probe(
            "sharding.analysis.predicted", device="cpu", memory=[], largest=[], sent=sent, nonsense=nonsense
        )
        for case, found in zip(sent, seen.sent, strict=True):
            ranks, rounds = case["ranks"], 3 if case["stage"] == 3 else 2
            wanted = rounds * case["parameters"] * case.get("element_bytes", 2) * (ranks - 1) / ranks
            require_close(
                found,
                wanted,
                relative=_EXACT,
                what=f"sent_per_rank({_told(case)})",
                hint="each reduce-scatter and each all-gather sends (ranks - 1) / ranks of the bytes once",
            )
        _require_refused(nonsense, seen)

    def test_overlap_found(self, submission: Submission, generator: InputGenerator) -> None:
        """Finds the share that is hidden."""
        unit = generator.integer(2, 9) / 4

        def times(*pairs: tuple[float, float]) -> list[list[float]]:
            return [[start * unit, end * unit] for start, end in generator.shuffled(list(pairs))]

        cases: list[dict[str, Any]] = [
            {"communication": times((0, 4), (6, 8)), "computation": times((1, 2), (3, 7)), "share": 3 / 6},
            # Overlapping messages, overlapping work: a moment counts once.
            {
                "communication": times((0, 4), (2, 6)),
                "computation": times((1, 3), (2, 3), (5, 9)),
                "share": 0.5,
            },
            # One within another, with a long one first.
            {"communication": times((0, 10), (1, 2), (4, 12)), "computation": times((9, 12)), "share": 0.25},
            {"communication": times((3, 4), (1, 2)), "computation": times((0, 9), (1, 2)), "share": 1.0},
            {"communication": times((1, 2)), "computation": [], "share": 0.0},
            {"communication": times((1, 2)), "computation": times((2, 3), (0, 1)), "share": 0.0},
            {"communication": [], "computation": times((0, 1)), "share": None},
            {"communication": times((1, 1)), "computation": times((0, 3)), "share": None},
        ]
        nonsense = [
            {"communication": times((2, 1)), "computation": times((0, 1))},
            {"communication": times((0, 1)), "computation": times((0, 3), (4, 2))},
        ]
        seen = submission.probe("sharding.analysis.overlap", device="cpu", cases=cases, nonsense=nonsense)
        for case, found in zip(cases, seen.shares, strict=True):
            what = f"hidden_share({case['communication']}, {case['computation']})"
            if case["share"] is None:
                require_equal(found, None, what=what, hint="nothing was communicated for any time")
            else:
                low, high = case["share"] - 1e-9, case["share"] + 1e-9
                hint = "each moment counts once, however many overlap in it"
                require_between(found, low, high, what=what, expected=f"{case['share']:g}", hint=hint)
        for case, error in zip(nonsense, seen.errors, strict=True):
            what = f"hidden_share({case['communication']}, {case['computation']})"
            require(error == "ValueError", f"{what} raised {error or 'nothing'}, expected a ValueError", _RAISES)

    def test_results_and_plot_saved(self, submission: Submission) -> None:
        """Saves measurements, predictions and a plot."""
        arguments = ["--ranks", "1,2", "--width", "32", "--layers", "2"]
        what = f"python -m labs.sharding_exercise.analysis {' '.join(arguments)}"
        seen = submission.probe(
            "sharding.analysis.program", device="cpu", limits=_PROGRAM, arguments=[*arguments, "--device", RANKS]
        )
        rows = picture_and_json(seen, what)
        require_provenance(seen, what, simulated=True)
        require_simulated_pictures(seen, what)
        found = [[row.get("method"), row.get("stage"), row.get("ranks")] for row in rows]
        expected = [[method, stage, ranks] for ranks in (1, 2) for method, stage in _METHODS.items()]
        require_equal(found, expected, what=f"methods, stages and ranks in the results of {what}")
        for row in rows:
            where = f"{what}: {row['method']} on {row['ranks']} ranks"
            own = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
            held = _memory(row["parameters"], row["ranks"], row["stage"], **own)["total_bytes"]
            require_close(
                row["predicted_held_bytes"], held, relative=_EXACT, what=f"{where}: predicted_held_bytes", hint=_SHARED
            )
            # Small tensors are rounded up to 512 bytes, and shares to whole rows.
            require_close(row["held_bytes"], held, relative=0.2, what=f"{where}: held_bytes")

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        """Claims what results/ say, and has 60 words."""
        _judge_report(submission)


_RAISES = "see Raises in its docstring"
_SHARED = "stage 1 shares out the optimizer's states, 2 gradients as well, 3 parameters as well"
_WRONG: tuple[dict[str, int], ...] = ({"parameters": 0}, {"ranks": 0}, {"stage": 4}, {"stage": -1})


def _memory(
    parameters: int,
    ranks: int,
    stage: int,
    *,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
) -> dict[str, float]:
    """Section 5 of arXiv:1910.02054."""
    held = {
        "optimizer_bytes": optimizer_bytes * parameters / (ranks if stage > 0 else 1),
        "gradient_bytes": gradient_bytes * parameters / (ranks if stage > 1 else 1),
        "parameter_bytes": parameter_bytes * parameters / (ranks if stage > 2 else 1),
    }
    return {**held, "total_bytes": sum(held.values())}


def _told(case: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in case.items())


def _require_refused(nonsense: list[dict[str, Any]], seen: Seen) -> None:
    for case, error in zip(nonsense, seen.errors, strict=True):
        what = f"{case['name']}({_told(case['arguments'])})"
        require(error == "ValueError", f"{what} raised {error or 'nothing'}, expected a ValueError", _RAISES)


@reports.explained
def _judge_report(submission: Submission) -> None:
    claims = reports.claims(submission, _LAB, _KINDS, task="7.4", write=_WRITE)
    document = reports.results(submission, _LAB, "sharding.json")
    reports.require_device(claims["device"], document["provenance"])
    try:
        most = max(row["ranks"] for row in document["results"])
        rows = {row["method"]: row for row in document["results"] if row["ranks"] == most}
        held = rows["FSDP2"]["held_bytes"] / rows["DDP"]["held_bytes"]
        sent = rows["ZeRO-1"]["sent_bytes"] / rows["ZeRO-1"]["predicted_sent_bytes"]
    except (KeyError, TypeError):
        raise CheckFailed("results/sharding.json lacks what the report is about", "run its program again") from None
    require_equal(claims["ranks"], most, what="claim ranks")
    require_close(claims["held_share"], held, relative=0.02, what="claim held_share")
    require_close(claims["sent_ratio"], sent, relative=0.02, what="claim sent_ratio")
    predicted = _memory(70_000_000_000, most, 3)["total_bytes"] / 1e9
    require_close(claims["predicted_gb"], predicted, relative=0.02, what="claim predicted_gb")
