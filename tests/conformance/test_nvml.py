"""NVML, through pynvml (nvidia-ml-py) and through torch.cuda's functions above it."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.machine import Gpu
from tests.conformance.measure import LONG_SECONDS, MIB, cycles_for
from tests.conformance.programs import program

NVML = "NVML API Reference Guide"


@program(f"{NVML}: device queries", module="pynvml")
def test_the_device_is_the_one_that_torch_uses(cuda: Gpu) -> None:
    import pynvml

    pynvml.nvmlInit()
    try:
        assert pynvml.nvmlDeviceGetCount() >= torch.cuda.device_count()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert torch.cuda.get_device_name(0) in pynvml.nvmlDeviceGetName(handle)
        assert pynvml.nvmlDeviceGetIndex(handle) == 0
        assert tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)) == torch.cuda.get_device_capability()
        assert pynvml.nvmlDeviceGetUUID(handle).startswith("GPU-")
        assert pynvml.nvmlSystemGetDriverVersion()[0].isdigit()
        assert pynvml.nvmlSystemGetCudaDriverVersion() >= 11000
    finally:
        pynvml.nvmlShutdown()


@program(f"{NVML}: nvmlDeviceGetMemoryInfo, in bytes", module="pynvml")
def test_used_memory_follows_what_is_reserved(cuda: Gpu) -> None:
    import pynvml

    torch.zeros(1, device="cuda")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(handle)
    kept = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    after = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert after.used - before.used == pytest.approx(kept.nbytes, abs=16 * MIB)
    assert before.total == after.total >= torch.cuda.get_device_properties(0).total_memory
    assert after.used > torch.cuda.memory_reserved()
    assert after.used + after.free == pytest.approx(after.total, rel=0.05)
    del kept
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == pytest.approx(after.used, abs=16 * MIB)  # cached
    torch.cuda.empty_cache()
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == pytest.approx(before.used, abs=16 * MIB)
    pynvml.nvmlShutdown()


@program(f"{NVML}: units: percent, degrees Celsius, milliwatts, MHz", module="pynvml")
def test_the_readings_have_their_units(cuda: Gpu) -> None:
    import pynvml

    torch.zeros(1, device="cuda")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    assert 0 <= rates.gpu <= 100
    assert 0 <= rates.memory <= 100
    assert 10 < pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) < 110
    limit = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
    assert 20_000 < limit < 2_000_000
    assert 1_000 < pynvml.nvmlDeviceGetPowerUsage(handle) < 1.2 * limit
    assert 50 < pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) < 5_000
    pynvml.nvmlShutdown()


@program(f"{NVML}: nvmlUtilization_t: share of the last sample period with a kernel running", module="pynvml")
def test_utilisation_rises_under_load(cuda: Gpu) -> None:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    cycles = cycles_for(LONG_SECONDS)
    for _ in range(round(1.5 / LONG_SECONDS)):
        torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    assert busy >= 50
    pynvml.nvmlShutdown()


@program(f"{NVML}: NVML_ERROR_INVALID_ARGUMENT", module="pynvml")
def test_nvml_has_its_own_errors(cuda: Gpu) -> None:
    import pynvml

    pynvml.nvmlInit()
    with pytest.raises(pynvml.NVMLError) as caught:
        pynvml.nvmlDeviceGetHandleByIndex(pynvml.nvmlDeviceGetCount())
    assert caught.value.value == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert isinstance(caught.value, pynvml.NVMLError_InvalidArgument)
    assert str(caught.value) == "Invalid Argument"
    pynvml.nvmlShutdown()


@program("torch docs: torch.cuda.utilization, memory_usage, temperature, power_draw, clock_rate", module="pynvml")
def test_torch_asks_nvml_too(cuda: Gpu) -> None:
    torch.zeros(1, device="cuda")
    assert 0 <= torch.cuda.utilization() <= 100
    assert 0 <= torch.cuda.memory_usage() <= 100
    assert 10 < torch.cuda.temperature() < 110
    assert torch.cuda.power_draw() > 1_000
    assert 50 < torch.cuda.clock_rate() < 5_000
    assert torch.cuda.device_memory_used() > torch.cuda.memory_reserved()
