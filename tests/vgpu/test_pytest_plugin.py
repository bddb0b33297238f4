"""`pytest --vgpu`: tests of somebody else's CUDA code."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest, torch

def test_values():
    assert torch.cuda.is_available()
    assert (torch.ones(3, device="cuda") * 2).sum().item() == 6

def test_memory_begins_at_nothing():
    assert torch.cuda.memory_allocated() == 0
    torch.ones(1000, device="cuda")

def test_memory_begins_at_nothing_again():
    assert torch.cuda.max_memory_allocated() == 0

@pytest.mark.vgpu("H100", gpus=2)
def test_marked(virtual_gpu):
    assert torch.cuda.get_device_name(0).startswith("NVIDIA H100")
    assert torch.cuda.device_count() == 2
    torch.ones(3, device="cuda:1") + 1
    assert virtual_gpu.machine.gpus[1].timeline

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("device", range(torch.cuda.device_count()))
def test_that_skips_itself_without_cuda(device):
    assert torch.ones(2, device=device).sum().item() == 2

@pytest.mark.needs_gpu(capability=(8, 0))
def test_needs_ampere():
    torch.ones(1, device="cuda", dtype=torch.bfloat16)
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    pytester.makepyfile(TESTS)
    return pytester.runpytest_subprocess("-p", "vgpu.tools.pytest_plugin", "-p", "no:cacheprovider", "-rs", *options)


def test_every_test_has_a_virtual_gpu_of_its_own(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--vgpu", "T4")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["*needs compute capability 8.0, and the GPU has 7.5"])


@pytest.mark.night
def test_what_a_gpu_can_do_is_not_skipped(pytester: pytest.Pytester) -> None:
    run(pytester, "--vgpu", "A100-40GB").assert_outcomes(passed=6)


@pytest.mark.night
def test_without_the_option_only_what_is_marked_has_one(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-k", "test_marked or test_needs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*needs a GPU (--vgpu T4 gives a virtual one)"])


@pytest.mark.night
def test_the_fixture_alone_gives_a_t4(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(virtual_gpu):\n    assert virtual_gpu.spec.name == 'T4'\n")
    pytester.runpytest_subprocess("-p", "vgpu.tools.pytest_plugin").assert_outcomes(passed=1)


def test_a_model_that_there_is_not_ends_the_run_with_one_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--vgpu", "T5")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --vgpu T5: *T4*"])
