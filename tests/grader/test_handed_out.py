"""A function that a probe hands to a submission leads, by its globals, to nothing that knows an answer."""

from __future__ import annotations

import inspect
from types import ModuleType

import pynvml
import pytest

from grader.lab1.analysis import probes as lab1_analysis
from grader.lab1.benchmark import probes as lab1_benchmark
from grader.lab1.memory.probes import profiles as lab1_profiles
from grader.lab1.shared.probes import benchmark as lab1_products
from grader.lab3.scaling.probes import analysis as lab3_analysis
from grader.lab3.scaling.probes import measuring as lab3_measuring
from grader.lab5.monitoring.probes import fake_nvml, nvml_functions
from grader.lab5.monitoring.probes import running as lab5_monitoring
from grader.lab5.profiling.probes import jobs as lab5_jobs
from grader.lab5.profiling.probes import recording as lab5_profiling
from grader.lab5.profiling.probes import tuning as lab5_tuning
from grader.shared.probes import handed_out, kept
from grader.shared.probes.handed_out import network


def test_the_makers_of_lab_1_lead_to_no_probe() -> None:
    for maker in network([3, 5, 2], 4):
        reached = maker.__globals__.values()
        modules = {
            each.__name__ if isinstance(each, ModuleType) else getattr(each, "__module__", "") for each in reached
        }
        ours = {name for name in modules if str(name).startswith("grader")}
        assert ours == {"grader.shared.probes.handed_out"}


@pytest.mark.parametrize(
    "module", [lab1_analysis, lab1_benchmark, lab1_products, lab1_profiles], ids=lambda m: m.__name__
)
def test_what_lab_1_defines_for_submissions_lies_beside_no_reference(module: ModuleType) -> None:
    ours = [each for each in vars(module).values() if getattr(each, "__module__", "").startswith("grader.")]
    assert ours
    assert [each for each in ours if "reference" in each.__module__ or "launches" in each.__module__] == []


@pytest.mark.parametrize(
    "module",
    [lab3_analysis, lab3_measuring, lab5_profiling, lab5_tuning, lab5_monitoring],
    ids=lambda m: m.__name__,
)
def test_probes_of_labs_3_and_5_are_beside_no_reference(module: ModuleType) -> None:
    ours = [each for each in vars(module).values() if getattr(each, "__module__", "").startswith("grader.")]
    assert ours
    assert [each for each in ours if _knows(f"{each.__module__}.{each.__name__}")] == []
    assert [name for name in vars(module) if _knows(name) or name == "_parts"] == []


def _knows(name: str) -> bool:
    """Whether this is the name of something that knows an expected value."""
    return any(word in name for word in ("truth", "reference", "Reference"))


@pytest.mark.parametrize("module", [handed_out, kept, lab5_jobs, nvml_functions], ids=lambda m: m.__name__)
def test_what_is_handed_out_comes_from_modules_that_import_nothing_of_the_grader(module: ModuleType) -> None:
    reached = [getattr(each, "__module__", None) or getattr(each, "__name__", "") for each in vars(module).values()]
    # What `handed_out` and `kept` have may be used by the others: they are held to the same here.
    own = {module.__name__, handed_out.__name__, kept.__name__}
    assert {name for name in reached if str(name).startswith("grader")} <= own


def test_functions_in_the_place_of_pynvml_lead_to_no_made_up_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in list(vars(pynvml).items()):
        monkeypatch.setattr(pynvml, name, value)  # put back afterwards
    fake = fake_nvml.FakeNvml([{"celsius": 50}])
    for name in ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount", "nvmlDeviceGetTemperature", "nvmlUnitGetCount"):
        assert fake not in _reached(getattr(pynvml, name))
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetTemperature(0, 0) == 50
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetPowerUsage(0)
    assert (fake.users, len(fake.calls)) == (1, 2)


def test_what_was_noted_is_read_by_whoever_holds_the_reader() -> None:
    note, noted = kept.notes()
    note(3)
    note("four")
    assert noted() == [3, "four"]
    noted().clear()
    assert noted() == [3, "four"]
    assert [each for each in _reached(note) if isinstance(each, list)] == []


def _reached(function: object) -> list[object]:
    """What a function's closure holds, and the closures of what it holds."""
    objects: list[object] = []
    waiting = [function]
    while waiting:
        each = waiting.pop()
        objects.append(each)
        if inspect.isfunction(each):
            waiting += [cell.cell_contents for cell in each.__closure__ or ()]
        elif inspect.ismethod(each):
            waiting += [each.__self__, each.__func__]
    return objects
