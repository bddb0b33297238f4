"""What a profile of known operations must say, on the GPU and on the CPU, and which of made-up ones are slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradebox.run.assertions import NeedsReview, number, require, require_between, require_close, require_equal, seconds
from gradebox.run.input_generator import InputGenerator
from grader.shared.cases import every_value

_SELF = "self times: without the operations called in turn, and without listing kernels a second time"
_PREFIX = "aten::"
_CLOCK_SHARE = 1.05
"""Self times of all operations together may not be longer than the steps took."""
_LEAST_SHARE = 0.02
_SAME = 0.02
_INNER_SHARE = 0.5
_ONE, _MANY = "sin", "tanh"

Rows = Mapping[str, Mapping[str, Any]]


def _rows(seen: Any, asked: Sequence[str], steps: int, warmup: int, what: str) -> Rows:
    """The operations by name; fails unless they are operations, each once, those asked for among them."""
    require(bool(seen.operations), f"{what} returned nothing")
    names = [row["name"] for row in seen.operations]
    others = [name for name in names if not str(name).startswith(_PREFIX)]
    require(not others, f"{what}: {', '.join(map(str, others[:2]))} is no operation", "their names begin with aten::")
    twice = sorted({name for name in names if names.count(name) > 1})
    require(
        not twice, f"{what}: {twice[:1]} stands there twice", "one OperationTime per operation, whatever its shapes"
    )
    require(
        seen.steps_run == warmup + steps,
        f"{what}: the step ran {seen.steps_run} times, expected {steps} after {warmup} to warm up",
        "warmup + steps calls, of which the last ones are recorded",
    )
    missing = [name for name in asked if name not in names]
    require(
        not missing,
        f"{what}: {', '.join(missing)} ran, and is missing",
        "every operation that ran is there, also one that launches nothing",
    )
    return {row["name"]: row for row in seen.operations}


def _require_calls(rows: Rows, wanted: Mapping[str, int], steps: int) -> None:
    for name, calls in wanted.items():
        require_equal(
            rows[name]["calls"],
            steps * calls,
            what=f"calls of {name} in {steps} profiled steps",
            hint="warm-up steps run before the profiler starts; every profiled step is counted",
        )


def _require_sorted(seen: Any, field: str) -> list[float]:
    took = [number(row[field], field) for row in seen.operations]
    shown = ", ".join(f"{row['name']} {seconds(spent)}" for row, spent in zip(seen.operations, took, strict=True))
    require(
        took == sorted(took, reverse=True),
        f"the operations are not sorted by {field}, the slowest first: {shown[:200]}",
        "the time on the device alone decides on a GPU, and the host's on a CPU",
    )
    return took


def one_and_many(generator: InputGenerator) -> tuple[dict[str, int], list[list[Any]]]:
    """Two operations alike, how often they are called and how slow they are.

    One long kernel takes the device longer than many short ones; their launches take the host so much longer that both
    times together tell the other order.
    """
    calls, pace = generator.integer(8, 14), generator.uniform(2.0, 4.0)
    shorter = generator.uniform(0.4, 0.8) * pace / calls
    return {_ONE: 1, _MANY: calls}, [[_PREFIX + _ONE, round(pace, 3)], [_PREFIX + _MANY, round(shorter, 4)]]


def require_profiled(
    seen: Any,
    slowest: str,
    repeats: Mapping[str, int],
    steps: int,
    warmup: int,
    *,
    indexed: bool,
    timed: bool,
) -> None:
    """Judge `lab1.operations.operations`; `timed` where the seconds of each kernel are known.

    Raises:
        NeedsReview: the machine's profiler records no kernels.
    """
    if not seen.recorded:
        raise NeedsReview(
            "PyTorch's profiler records no kernels on this machine, whoever asks",
            "NVIDIA's CUPTI does: is its library there, and may this user trace the GPU?",
        )
    wanted = {f"{_PREFIX}{name}": count for name, count in repeats.items()}
    what = f"profile_operations(device={'cuda:0' if indexed else 'cuda'!r})"
    rows = _rows(seen, [*wanted, "aten::view"], steps, warmup, what)
    if indexed:
        require(
            any(row["device_seconds"] != 0 for row in seen.operations),
            f"{what}: device_seconds of all operations are 0.0",
            "a GPU may be named with its index; torch.device(device).type tells a CPU from a GPU",
        )
    first = seen.operations[0]
    require(
        first["name"] == slowest,
        f"{what}: the slowest operation of a step with {repeats}: saw {first['name']!r}, expected {slowest!r}",
        "operations, not kernels, have names that begin with aten::; the longest self time on the device first",
    )
    _require_calls(rows, {**wanted, "aten::view": 1}, steps)
    took = _require_sorted(seen, "device_seconds")
    if not timed:
        return
    for name in wanted:
        require(name in seen.truth["seconds"], f"{what}: {name} did not run", "call step() in the profiled steps")
        for field, real in zip(("cpu_seconds", "device_seconds"), seen.truth["seconds"][name], strict=True):
            told = number(rows[name][field], field)
            hint = "the profiler's times are in microseconds"
            if field == "device_seconds" and 0.9 <= told * steps / max(real, 1e-12) <= 1.1:
                hint = "summed over all recorded calls, not their mean"
            require_close(
                told, real, relative=_SAME, what=f"{field} of {name} in {steps} steps", show=seconds, hint=hint
            )
    everything = sum(device for _, device in seen.truth["seconds"].values())
    require_between(
        sum(took),
        0,
        (1 + _SAME) * everything,
        what=f"device seconds of all operations together in {steps} steps",
        show=seconds,
        hint=_SELF,
    )
    require(
        bool(seen.truth["idle_at_start"]),
        f"{what}: work from before was not finished when the recording started",
        "wait for the device after the warm-up: what is recorded shares the GPU with what was queued before",
    )


def require_profiled_on_cpu(seen: Any, steps: int, warmup: int) -> None:
    """Judge `lab1.operations.on_cpu`."""
    what = 'profile_operations(device="cpu")'
    inner, outer = "aten::mm", "aten::matmul"
    rows = _rows(seen, [inner, outer], steps, warmup, what)
    _require_calls(rows, {inner: 1, outer: 1}, steps)
    on_device = {row["name"]: row["device_seconds"] for row in seen.operations if row["device_seconds"] != 0}
    require(not on_device, f"{what}: device_seconds of {on_device}, expected 0.0", "a CPU launches no kernels")
    took = _require_sorted(seen, "cpu_seconds")
    spent = sum(seen.step_seconds)
    require_between(
        sum(took),
        _LEAST_SHARE * spent,
        _CLOCK_SHARE * spent,
        what=f"{what}: cpu_seconds of all operations together, in steps that took {seconds(spent)}",
        show=seconds,
        hint=f"in seconds, summed over the recorded calls; {_SELF}",
    )
    own, called = (number(rows[name]["cpu_seconds"], f"{what}: cpu_seconds of {name}") for name in (outer, inner))
    require(
        own < _INNER_SHARE * called,
        f"{what}: {outer}, which calls {inner}, takes {seconds(own)}, and {inner} itself {seconds(called)}",
        "self times: what an operation calls in turn is not its own",
    )


_SLOWEST = {
    "on": ("GPU", "CPU"),
    "count": ("not given", "1", "some", "all", "more"),
    "launching": ("all", "some"),
}


def _allowed(row: Mapping[str, Any]) -> bool:
    """On a CPU nothing launches; what launches nothing on a GPU has no order of its own at the end of the list."""
    return row["launching"] == "all" or (row["on"] == "GPU" and row["count"] not in ("all", "more"))


def made_up_operations(generator: InputGenerator) -> tuple[list[list[list[Any]]], list[int | None]]:
    """Lists of (name, CPU seconds, device seconds), and how many of each are asked for: of a GPU, and of a CPU."""
    lists: list[list[list[Any]]] = []
    counts: list[int | None] = []
    for row in every_value(generator, _SLOWEST, 3, _allowed):
        length = generator.integer(7, 11)
        launching = length if row["launching"] == "all" else 6
        # Of a GPU most operations may launch nothing; the host's times tell another order.
        device = [generator.log_uniform(1e-6, 1e-1) if row["on"] == "GPU" else 0.0 for _ in range(launching)]
        device = generator.shuffled([*device, *[0.0] * (length - launching)])
        lists.append([[f"aten::op{i}", generator.log_uniform(1e-6, 1e-1), took] for i, took in enumerate(device)])
        few, all_, more = generator.integer(2, 6), len(device), len(device) + generator.integer(1, 9)
        counts.append({"not given": None, "1": 1, "some": few, "all": all_, "more": more}[row["count"]])
    return lists, counts


def require_slowest(
    lists: Sequence[Sequence[Sequence[Any]]], counts: Sequence[int | None], told: Sequence[Sequence[str]]
) -> None:
    """Fail unless `slowest` named the slowest of each list, the slowest first."""
    for rows, count, names in zip(lists, counts, told, strict=True):
        place = 2 if any(row[2] > 0 for row in rows) else 1
        field = ("cpu_seconds", "device_seconds")[place - 1]
        order = sorted(rows, key=lambda row: row[place], reverse=True)
        require_equal(
            names,
            [row[0] for row in order[: 5 if count is None else count]],
            what=f"names of slowest(operations{'' if count is None else f', {count}'}) by {field}",
            hint="device_seconds decide; cpu_seconds only where no operation has any device_seconds",
        )
