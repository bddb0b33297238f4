"""What checks accept on a real GPU: what cards and their hosts do by themselves, and not what a mistake makes of it.

Numbers of an H100 in a virtual machine (docs/on-a-gpu.md): products back to back by events, and one by one as the
reference read them on its host's clock. Other cards are made up of their data sheets.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import grader
import vgpu
from gradebox.common import layout
from gradebox.run.assertions import CheckFailed, NeedsReview
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox.devices import Device
from gradebox.sandbox.measuring import measured_by
from gradebox.sandbox.probe_types import ProbeInputs
from grader.lab1.analysis.cases import ProfileOnGpu, ProfileReply
from grader.lab1.analysis.checks import operations
from grader.lab1.shared.cases import drawn as sizes
from grader.lab1.shared.cases.products import Observation, Result
from grader.lab1.shared.checks import mistakes
from grader.lab1.shared.reference import Measurement, expected
from grader.lab2.comparison.cases import measuring
from grader.lab2.comparison.checks import comparison
from grader.lab4.attention.cases.types import BenchmarkCall
from grader.lab4.attention.checks import benchmark
from grader.lab4.checkpointing.cases.types import CPU_INTERVALS, Sizes
from grader.lab4.checkpointing.checks import criterion as checkpointing_checks
from grader.lab4.checkpointing.checks.timed import batch_for
from grader.shared.cards import Card, card_of
from grader.shared.probes.record import watch_products

SEEN = {  # size: seconds of a product
    643: (20.6e-6, 57.5e-6),
    3547: (654e-6, 704e-6),
    4405: (3.863e-3, 4.155e-3),
}
FRESH = InputGenerator(11, "real GPUs")


def card(float32: float, float16: float, bfloat16: float, float64: float, gigabytes: float) -> Card:
    flops = {"float32": float32, "float16": float16, "bfloat16": bfloat16, "float64": float64}
    memory = int(gigabytes * 1e9)
    return Card({name: value * 1e12 for name, value in flops.items()}, memory, memory)


# Of products of an odd size, rounded down.
CARDS = {
    "H100": card(32, 128, 128, 32, 80),
    "B300": card(64, 256, 256, 1, 288),
    "T4": card(2, 16, 1, 0.125, 16),
    "laptop": card(4, 16, 16, 0.0625, 8),
    "a slice": card(4, 32, 32, 4, 5),
    "a slow one": card(0.5, 0.5, 0.25, 0.015625, 2),
}


class Real:
    """A submission on a real card: each probe tells what it is given."""

    device = Device("cuda", "a card")

    def __init__(self, **probes: dict[str, Any]) -> None:
        self._probes = {
            "shared.card.measured": {
                "flops": CARDS["H100"].flops, "memory_bytes": 80 * 10**9, "free_bytes": 79 * 10**9,
            },
            **{name.replace("__", "."): reply for name, reply in probes.items()},
        }  # fmt: skip

    def probe(self, probe: str | ProbeInputs[Any], **options: Any) -> Any:
        name = probe if isinstance(probe, str) else probe.probe
        reply = Seen(self._probes[name], {})
        return reply if isinstance(probe, str) else reply.read_as(probe.reply_type(), name)

    numeric_probe = probe


def real(**probes: dict[str, Any]) -> Submission:
    return cast(Submission, Real(**probes))


def measurement(
    size: int, seconds: float, iterations: int = 7, *, host_seconds: float = 0.0, tf32: bool = False
) -> Measurement:
    result: Result = {
        "device": "cuda", "dtype": "float32", "size": size, "iterations": iterations, "seconds": seconds, "tflops": 1.0,
    }  # fmt: skip
    observed = Observation(
        result=result,
        products=[{"device": "cuda", "dtype": "float32", "flops": 2 * size**3, "count": iterations}],
        own_seconds=list(SEEN[size]),
        host_seconds=host_seconds,
        tf32=tf32,
    )
    return Measurement(call={"size": size, "iterations": iterations}, observed=observed, pace=None)


@pytest.mark.parametrize("size", SEEN)
def test_either_method_is_right(size: int) -> None:
    alone, waited = SEEN[size]
    for seconds in (alone, 0.95 * alone, waited, 1.08 * waited, waited + 15e-6):
        measured = measurement(size, seconds)
        assert seconds in expected("cuda", measured)
        assert mistakes.mistake_of("cuda", measured) is None


@pytest.mark.parametrize("size", [3547, 4405])
def test_mistakes_are_seen_in_long_products(size: int) -> None:
    waited = SEEN[size][1]
    for seconds, cause in (
        (7 * waited, mistakes.TOTAL),
        (1e3 * waited, mistakes.MILLISECONDS),
        (waited / 7, mistakes.DIVIDED_TWICE),
        (12e-6, mistakes.NOT_WAITED),
        (1.5 * waited, mistakes.MORE),
    ):
        assert mistakes.mistake_of("cuda", measurement(size, seconds)) is cause


def test_a_slow_host_may_add_more() -> None:
    measured = measurement(643, SEEN[643][1] + 90e-6, host_seconds=200e-6)
    assert mistakes.mistake_of("cuda", measured) is None
    measured = measurement(643, SEEN[643][1] + 90e-6, 50, host_seconds=45e-6)
    assert mistakes.mistake_of("cuda", measured) is mistakes.MORE


def test_tf32_is_named() -> None:
    measured = measurement(4405, SEEN[4405][0] / 4, tf32=True)
    assert mistakes.mistake_of("cuda", measured) is mistakes.TF32


@pytest.mark.parametrize("name", CARDS)
def test_no_product_takes_long(name: str) -> None:
    gpu = CARDS[name]
    for dtype in gpu.flops:
        drawn = [
            sizes.long_size("cuda", FRESH, dtype, card=gpu),
            *sizes.short_sizes("cuda", FRESH, 3, dtype, card=gpu),
            sizes.aligned_size(FRESH, dtype, gpu),
        ]
        for size in drawn:
            assert 2 * size**3 / gpu.flops[dtype] < 1.05 * 6e-3 or size == 384
    for size in sizes.long_sizes("cuda", FRESH, 9, card=gpu):
        assert 2 * size**3 / gpu.flops["float32"] < 1.05 * 6e-3


def test_a_fast_card_gets_large_products() -> None:
    for dtype in ("float32", "float16"):
        assert 3500 <= sizes.long_size("cuda", FRESH, dtype, card=CARDS["H100"]) <= 4501


def test_a_machine_whose_profiler_sees_no_kernels_is_for_people() -> None:
    inputs = ProfileOnGpu(size=9, repeats={}, beside={}, without_kernel={}, steps=1, warmup=0, indexed=False)
    profile = ProfileReply(operations=[], steps_run=0, device_record=None, recorded=False)
    with pytest.raises(NeedsReview, match="records no kernels"):
        operations.require_profiled(profile, inputs, "aten::mm", timed=False)


def test_speeds_are_rounded_so_that_two_gradings_ask_the_same() -> None:
    flops = {"float32": 51.3e12, "float16": 201e12, "bfloat16": 199e12, "float64": 30e12}
    first, other = (
        card_of(real(shared__card__measured={
            "flops": {name: factor * value for name, value in flops.items()},
            "memory_bytes": 80 * 10**9, "free_bytes": 79 * 10**9 - used,
        }))
        for factor, used in ((1.0, 0), (1.02, 10**6))
    )  # fmt: skip
    assert first == other is not None


def _compared(took: float, reference_seconds: list[float]) -> Submission:
    plan = measuring.plans(Real.device, FRESH)["cuda"]
    steps = plan.steps + plan.warmup
    adam = {"kind": "Adam", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}
    rows = [
        {"dtype": name, "device": "cuda", "accuracy": value, "step_seconds": took, "peak_bytes": 10**9}
        for name, value in plan.accuracies
    ]
    models = [
        {
            "forwards": steps, "modes": [True], "steps": steps, "losses": [], "optimizers": [adam],
            "updates": steps if name == "float16" else 0,
        }
        for name, _ in plan.accuracies
    ]  # fmt: skip
    by_precision = dict.fromkeys(measuring.ACCURACIES, reference_seconds)
    return real(
        lab2__comparison__measuring__compare={"rows": rows, "models": models, "reference_seconds": by_precision}
    )


def test_a_step_lies_between_what_a_card_took_before_and_after() -> None:
    check = comparison.TestComparison().test_step_seconds_equal_reference
    before_and_after = [0.050, 0.051, 0.066, 0.068]  # the clock has fallen meanwhile
    for took in (0.047, 0.058, 0.072):
        check(_compared(took, before_and_after), FRESH)
    for took in (0.040, 0.090, 0.058e3):
        with pytest.raises(CheckFailed, match="seconds of a training step"):
            check(_compared(took, before_and_after), FRESH)


def _table(took: float, own_seconds: list[float]) -> None:
    """Judge a table of Lab 4 all of whose steps took so long, next to what the course's own took before and after."""
    drawn = InputGenerator(3, "table")
    intervals = drawn.shuffled([None, drawn.integer(1, 2)])
    steps, warmup = drawn.integer(3, 5), drawn.integer(2, 3)
    begun = [{"input_requires_gradient": False, "gradients": 0, "dropouts": [0.1]}] * (steps + warmup)
    reply = {
        "rows": [
            {"checkpoint_every": every, "device": "cuda", "step_seconds": took, "peak_bytes": 10**9}
            for every in intervals
        ],
        "steps": [{"seconds": own_seconds, "peak_bytes": 10**9, "flops": 10**13}] * 2,
        "blocks_made": 40,
        "most_blocks": 3,
        "forwards": [begun, begun],
        "flops": 2 * (steps + warmup) * 10**13,
        "updates": 0,
        "device": "cuda",
        "on_cpu": [{"device": "cpu", "checkpoint_every": every, "peak_bytes": None} for every in CPU_INTERVALS],
    }
    check = checkpointing_checks.TestCheckpointing().test_measured_table_equals_reference
    check(real(lab4__checkpointing__measured=reply), InputGenerator(3, "table"))


def test_a_table_lies_between_what_a_card_took_before_and_after() -> None:
    before_and_after = [0.050, 0.070]
    for took in (0.040, 0.060, 0.085):
        _table(took, before_and_after)
    for took in (0.017, 0.140, 60.0):
        with pytest.raises(CheckFailed, match="step_seconds"):
            _table(took, before_and_after)


@pytest.mark.parametrize("name", CARDS)
def test_batches_suit_the_card(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = CARDS[name]
    monkeypatch.setattr(comparison, "card_of", lambda _: gpu)
    case = measuring.network(FRESH)
    batch = comparison.on(real(), "cuda", case).batch
    step_flops = 6 * batch * sum(a * b for a, b in zip(case.widths, case.widths[1:], strict=False))
    slowest = min(gpu.flops[name] for name in ("float32", "float16", "bfloat16"))
    assert batch == case.batch // 4 or step_flops / slowest < 0.11
    assert 4 * batch * 2 * sum(case.widths) < 0.5 * gpu.memory_bytes
    sizes: Sizes = {"num_layers": 3, "width": 4 * 281, "heads": 4, "batch": 9, "length": 801}
    batch = batch_for(gpu, sizes)
    assert 1 <= batch <= 9
    assert batch == 9 or name != "H100"


@pytest.mark.parametrize("name", CARDS)
def test_two_lengths_fit_a_card_and_one_never_does(name: str) -> None:
    gpu = CARDS[name]
    call = BenchmarkCall(
        lengths=[3501, 2101, 40001], methods=[], dtype="float16", batch=2, heads=12, head_dim=64, causal=False
    )
    *short, longest = benchmark._lengths_for(gpu, call)
    pair_bytes = 2 * 2 * 12
    assert all(length % 2 for length in (*short, longest))
    assert 8 * pair_bytes * max(short) ** 2 < 0.45 * gpu.memory_bytes
    assert pair_bytes * longest**2 > 1.4 * gpu.memory_bytes
    assert short[0] > 1.3 * short[1]


CLOCKS = {"perf_counter", "elapsed_time", "profile_operations", "mem_get_info"}
"""What a probe measures with, or has measured."""
UNDISTURBED = {
    "lab2.comparison.measuring.compare_reference": "on a real GPU judged by its peaks",
    "lab3.setup.joining.join": "measures nothing: the function of the submission has the name of the probe next to it",
    "lab3.setup.joining.setup": "on a GPU no rank waits for another one by the clock",
    "lab3.setup.training.on_cpu": "on the CPU only",
    "lab3.setup.training.train": "a time within another one of the same process",
}


def _on_the_device() -> set[str]:
    """The probes that may be asked on the grading's device and name a clock, in their own body or in a helper's."""
    elsewhere = {"profile_on_cpu", "slow_cpu", "scaling", "launch", "largest", "installed", "fits", "tuning",
                 "profiling", "watched", "background", "moments"}  # fmt: skip
    folder = Path(grader.__file__).parent
    probes = set()
    for path in (file for lab in layout.labs(folder) for file in layout.files(lab, layout.PROBES)):
        functions = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        names = {
            name: {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute)}
            | {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
            for name, body in functions.items()
        }
        for name in functions:
            reached, more = {name}, {name}
            while more:
                more = {other for caller in more for other in names[caller] & functions.keys()} - reached
                reached |= more
            used = {identifier for other in reached for identifier in names[other]}
            arguments = [argument.arg for argument in functions[name].args.args]
            if arguments[:1] == ["student"] and not name.startswith("_") and CLOCKS & used:
                place = path.relative_to(folder).with_suffix("").parts
                probes.add(".".join([*(part for part in place if part != layout.PROBES), name]))
    return {probe for probe in probes if not any(word in probe for word in elsewhere)}


def test_every_probe_that_measures_says_so() -> None:
    folder = Path(grader.__file__).parent
    silent = {probe for probe in _on_the_device() if not measured_by(folder, probe)}
    assert silent == UNDISTURBED.keys()


def test_products_of_a_cuda_graph_run_when_it_is_replayed() -> None:
    """As on a real GPU, where nobody can be asked what ran."""
    before = {name: getattr(torch.cuda.CUDAGraph, name) for name in ("capture_begin", "capture_end", "replay")}
    with vgpu.attach("A100-80GB"):
        x = torch.ones(8, 8, device="cuda")
        with watch_products(None) as products:
            x @ x
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                x @ x
            assert products.number() == 1
            for _ in range(3):
                graph.replay()
            assert products.number() == 4
        with watch_products(None) as later:
            graph.replay()
        assert later.flops() == 2 * 8**3
    assert {name: getattr(torch.cuda.CUDAGraph, name) for name in before} == before
