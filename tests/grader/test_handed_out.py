"""A function that a probe hands to a submission leads, by its globals, to nothing that knows an answer."""

from __future__ import annotations

from types import ModuleType

from grader.lab1.probes import gpu_basics as lab1
from grader.shared.probes.handed_out import network


def test_the_makers_of_lab_1_lead_to_no_probe() -> None:
    for maker in network([3, 5, 2], 4):
        reached = maker.__globals__.values()
        modules = {
            each.__name__ if isinstance(each, ModuleType) else getattr(each, "__module__", "") for each in reached
        }
        ours = {name for name in modules if str(name).startswith("grader")}
        assert ours == {"grader.shared.probes.handed_out"}


def test_what_lab_1_defines_for_submissions_lies_beside_no_truth() -> None:
    assert [name for name in vars(lab1) if "truth" in name] == []
