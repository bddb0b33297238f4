"""Judges what is predicted of memory and messages, the share of messages that is hidden, the program and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.course.criterion import criterion
from gradebox.run.assertions import CheckFailed, require, require_between, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from gradebox.sandbox import Limits
from grader.sharding.analysis import reference
from grader.sharding.analysis.cases import (
    Intervals,
    RefusedCall,
    RunProgram,
    hidden_messages,
    memory_calls,
    sent_calls,
)
from grader.sharding.shared.checks import RANKS
from grader.shared import reports
from grader.shared.programs import picture_and_json, require_provenance, require_simulated_pictures

_EXACT = 1e-9
_LAB = "sharding_exercise"
_WRITE = "what each way holds and sends, why it is what was predicted or more, and what is hidden"
_METHODS = {"DDP": 0, "ZeRO-1": 1, "FSDP2": 3}
_PROGRAM = Limits(wall_seconds=300.0, cpu_seconds=300.0)
"""Each rank attaches a virtual GPU of its own; measured: 15 s of processor time."""
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
        inputs = memory_calls(generator)
        reply = submission.probe(inputs, device="cpu")
        for call, held in zip(inputs.memory, reply.memory, strict=True):
            what, actual = f"memory_per_rank({_in_words(call)})", dict[str, object](held)
            for name, expected in reference.memory(**call).items():
                require_close(actual[name], expected, relative=_EXACT, what=f"{what}: {name}", hint=_SHARED)
        for case, model in zip(inputs.largest, reply.largest, strict=True):
            what = f"largest_model({_in_words(case)})"
            expected = reference.largest(case)
            require(isinstance(model, int), f"{what}: saw {model!r}, expected a whole number")
            # A bound that is met exactly may be missed by one for rounding.
            low, high = expected - 1 - 1e-9 * expected, expected + 1e-9 * expected
            hint = "what one parameter takes, states included, is memory_per_rank's total of one"
            require_between(model, low, high, what=what, expected=f"{expected:,.0f}", hint=hint)
        _require_refused(inputs.refused, reply.errors)

    def test_messages_predicted(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = sent_calls(generator)
        reply = submission.probe(inputs, device="cpu")
        for call, sent in zip(inputs.sent, reply.sent, strict=True):
            require_close(
                sent,
                reference.sent(call),
                relative=_EXACT,
                what=f"sent_per_rank({_in_words(call)})",
                hint="each reduce-scatter and each all-gather sends (ranks - 1) / ranks of the bytes once",
            )
        _require_refused(inputs.refused, reply.errors)

    def test_overlap_found(self, submission: Submission, generator: InputGenerator) -> None:
        inputs = hidden_messages(generator)
        reply = submission.probe(inputs, device="cpu")
        for case, share in zip(inputs.cases, reply.shares, strict=True):
            expected = reference.hidden_share(case["communication"], case["computation"])
            if expected is None:
                require_equal(share, None, what=_hidden(case), hint="nothing was communicated for any time")
            else:
                low, high = expected - 1e-9, expected + 1e-9
                hint = "each moment counts once, however many overlap in it"
                require_between(share, low, high, what=_hidden(case), expected=f"{expected:g}", hint=hint)
        for case, error in zip(inputs.refused, reply.errors, strict=True):
            message = f"{_hidden(case)} raised {error or 'nothing'}, expected a ValueError"
            require(error == "ValueError", message, _RAISES)

    def test_results_and_plot_saved(self, submission: Submission) -> None:
        arguments = ["--ranks", "1,2", "--width", "32", "--layers", "2"]
        what = f"python -m labs.sharding_exercise.analysis {' '.join(arguments)}"
        inputs = RunProgram(command=[*arguments, "--device", RANKS])
        reply = submission.probe(inputs, device="cpu", limits=_PROGRAM)
        rows = picture_and_json(reply, what)
        require_provenance(reply, what, simulated=True)
        require_simulated_pictures(reply, what)
        saved = [[row.get("method"), row.get("stage"), row.get("ranks")] for row in rows]
        expected = [[method, stage, ranks] for ranks in (1, 2) for method, stage in _METHODS.items()]
        require_equal(saved, expected, what=f"methods, stages and ranks in the results of {what}")
        for row in rows:
            where = f"{what}: {row['method']} on {row['ranks']} ranks"
            own = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
            held = reference.memory(row["parameters"], row["ranks"], row["stage"], **own)["total_bytes"]
            require_close(
                row["predicted_held_bytes"], held, relative=_EXACT, what=f"{where}: predicted_held_bytes", hint=_SHARED
            )
            # Small tensors are rounded up to 512 bytes, and shares to whole rows.
            require_close(row["held_bytes"], held, relative=0.2, what=f"{where}: held_bytes")

    def test_report_agrees_with_results(self, submission: Submission) -> None:
        _judge_report(submission)


_RAISES = "see Raises in its docstring"
_SHARED = "stage 1 shares out the optimizer's states, 2 gradients as well, 3 parameters as well"


def _in_words(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def _hidden(case: Intervals) -> str:
    return f"hidden_share({case['communication']}, {case['computation']})"


def _require_refused(calls: Sequence[RefusedCall], errors: Sequence[str]) -> None:
    for call, error in zip(calls, errors, strict=True):
        what = f"{call['name']}({_in_words(call['arguments'])})"
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
    predicted = reference.memory(70_000_000_000, most, 3)["total_bytes"] / 1e9
    require_close(claims["predicted_gb"], predicted, relative=0.02, what="claim predicted_gb")
