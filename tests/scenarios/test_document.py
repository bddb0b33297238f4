"""Solutions in the words of the documents: their layout, their files, their signatures.

`hand_out/` is Module 07's starter code, filled in plainly. What it does right earns its checks, and what it lacks is
said without blaming anybody else.
"""

from __future__ import annotations

import re
import shutil

import pytest

from gradebox.run.grade import Outcome
from tests.scenarios.asking import Turn
from tests.scenarios.build import SCENARIOS
from tests.scenarios.grading import Bench, Graded
from tests.scenarios.misfits import Function, misfit
from tests.scenarios.reuse import REFERENCE, code_of

HAND_OUT = SCENARIOS / "hand_out"
EARNED = {
    "1": set[str](),
    "2": {
        "lab2.amp.loss_in_float32",
        "lab2.amp.parameters_and_state_stay_float32",
        "lab2.amp.backward_outside_autocast",
        "lab2.scaling.overflow_skips_the_step",
        "lab2.scaling.small_gradients_survive",
        "lab2.scaling.float16_as_accurate_as_float32",
    },
    "3": {
        "lab3.setup.joins_and_leaves",
        "lab3.accumulation.equals_one_large_batch",
        "lab3.accumulation.gradients_reduced_once_per_step",
        "lab3.accumulation.replicas_identical",
    },
    "4": {"lab4.attention.standard_equals_reference", "lab4.attention.flash_equals_reference"},
}
"""By lab what the hand-out, filled in plainly, does right."""


@pytest.mark.night
@pytest.mark.parametrize("lab", sorted(EARNED))
def test_the_hand_out_earns_what_it_does_right(lab: str, bench: Bench) -> None:
    graded = bench.grade_folder(HAND_OUT, lab)
    assert graded.passed == EARNED[lab], graded.problems
    assert not graded.needs_review, graded.problems
    assert "itself failed" not in graded.problems


@pytest.mark.night
def test_the_hand_outs_benchmark_is_told_once_what_to_return(bench: Bench) -> None:
    graded = bench.grade_folder(HAND_OUT, "1")
    checks = [
        check for check in graded.checks.values() if re.match(r"benchmark_matmul\(.*?\) returned tuple", check.message)
    ]
    checks = [check for check in checks if check.outcome is Outcome.FAILED]
    assert [check.id for check in checks] == ["lab1.benchmark.returns_result"], graded.problems
    assert "return a MatmulResult" in checks[0].message


# A function of the reference that takes the document's arguments and no others loses the checks about the others.
_ABOUT_OTHERS = {
    ("lab1_gpu_basics/benchmark.py", "benchmark_matmul"): {
        "lab1.benchmark.right_device_and_dtype",
        "lab1.benchmark.warmed_up",
        "lab1.benchmark.nonsense_refused",
        "lab1.benchmark.all_sizes_compared",
        "lab1.benchmark.results_and_plot_saved",
        "lab1.measurements.seconds_equal_reference",
    },
    ("lab2_mixed_precision/amp_training.py", "train_with_amp"): {
        "lab2.amp.products_in_low_precision",
        "lab2.amp.defaults_and_refusals",
        "lab2.amp.bfloat16_as_accurate_as_float32",
        "lab2.scaling.clipping_sees_unscaled_gradients",
        "lab2.scaling.scheduler_waits_for_the_optimizer",
        "lab2.scaling.scale_follows_its_settings",
        "lab2.scaling.accumulation_equals_one_large_batch",
        "lab2.scaling.only_float16_is_scaled",
        "lab2.comparison.accuracies_equal_reference",
        "lab2.comparison.results_and_plots_saved",
    },
    ("lab3_distributed/accumulation.py", "train_with_accumulation"): {"lab3.accumulation.given_arguments_used"},
    ("lab4_memory/flash_attention.py", "standard_attention"): {
        "lab4.attention.no_query_sees_the_future",
        "lab4.attention.benchmark_equals_reference",
        "lab4.attention.results_and_plot_saved",
    },
    ("lab4_memory/flash_attention.py", "flash_attention"): {
        "lab4.attention.no_query_sees_the_future",
        "lab4.attention.benchmark_equals_reference",
        "lab4.attention.results_and_plot_saved",
    },
    ("lab4_memory/gradient_checkpointing.py", "CheckpointedTransformer.__init__"): {
        "lab4.checkpointing.saved_bytes_follow_the_interval",
        "lab4.checkpointing.measured_table_equals_reference",
        "lab4.checkpointing.nonsense_refused",
        "lab4.checkpointing.results_and_plot_saved",
        "lab4.analysis.results_and_plot_saved",
    },
}


@pytest.mark.night
@pytest.mark.parametrize(("file", "name"), [pytest.param(file, name, id=name) for file, name in _ABOUT_OTHERS])
def test_the_documents_signature_loses_the_checks_about_other_arguments_alone(
    file: str, name: str, bench: Bench
) -> None:
    text = misfit(Function(file, name), "positional alone")
    assert text is not None
    shutil.rmtree(bench.folder)
    shutil.copytree(REFERENCE, bench.folder, ignore=shutil.ignore_patterns("__pycache__"))
    (bench.folder / file).write_text(text, encoding="utf-8")
    bench.asking.begin(Turn(code_of(bench.folder), cold=False))
    graded: Graded = bench.carry_out(bench.order(file[3]))
    lost = {check for check in graded.checks if check not in graded.passed}
    assert lost <= _ABOUT_OTHERS[file, name], graded.problems
    assert lost, "the checks about other arguments do not look at them"


@pytest.mark.night
def test_a_setup_that_takes_the_documents_arguments_alone_joins(bench: Bench) -> None:
    """The reference's `train` gives it others; the checks of setup itself are what counts here."""
    text = misfit(Function("lab3_distributed/ddp_training.py", "setup"), "positional alone")
    assert text is not None
    shutil.rmtree(bench.folder)
    shutil.copytree(REFERENCE, bench.folder, ignore=shutil.ignore_patterns("__pycache__"))
    (bench.folder / "lab3_distributed" / "ddp_training.py").write_text(text, encoding="utf-8")
    bench.asking.begin(Turn(code_of(bench.folder), cold=False))
    graded = bench.carry_out(bench.order(criteria=["lab3.setup"]))
    assert "lab3.setup.joins_and_leaves" in graded.passed, graded.problems
    assert "lab3.setup.meets_where_it_is_told" not in graded.passed


LAYOUTS: dict[str, dict[str, str]] = {  # besides ours, which every other test has
    "the hand-out's": {"lab1_gpu_basics": "lab1-gpu-basics", "lab2_mixed_precision": "lab2-mixed-precision"},
    "in labs/": {name: f"labs/{name}" for name in ("lab1_gpu_basics", "lab2_mixed_precision")},
}


@pytest.mark.night
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_submission_is_read_in_each_layout_that_the_pages_name(layout: str, bench: Bench) -> None:
    """A folder of our layout (`lab1_gpu_basics/`) or of the hand-out's (`lab1-gpu-basics/`): docs/instructor.md."""
    folder = bench.folder.with_name(f"layout {layout.replace('/', '')}")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("lab1_gpu_basics", "lab2_mixed_precision"):
        target = folder / LAYOUTS[layout].get(name, name)
        shutil.copytree(REFERENCE / name, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(bench.folder)
    shutil.copytree(folder, bench.folder)
    bench.asking.begin(Turn())
    graded = bench.carry_out(bench.order(criteria=["lab1.analysis", "lab2.stability"]))
    assert graded.problems == ""


def test_every_file_that_a_readme_names_for_a_task_is_in_its_lab() -> None:
    """The headings of a lab's README, `## Task 3.1: ... (`ddp_training.py`)`, are what students go by."""
    for readme in sorted(REFERENCE.glob("*/README.md")):
        heads = re.findall(r"^## Task [^\n]*\(([^\n]*)\)$", readme.read_text(encoding="utf-8"), re.MULTILINE)
        named = [name for head in heads for name in re.findall(r"`([\w.]+)`", head)]
        assert named or readme.parent.name == "container_exercise", readme
        for name in named:
            assert (readme.parent / name).is_file(), f"{readme}: {name}"
