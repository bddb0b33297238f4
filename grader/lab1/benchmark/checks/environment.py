"""Judges descriptions of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.run.assertions import Cause, require, require_equal
from grader.lab1.benchmark.cases import Described, EnvironmentReply

ABSENT = "Report None for what a machine lacks, never an exception and never a made-up value."
_HINTS = {
    "cuda": "Report what PyTorch was built for.",
    "driver": f"Ask NVML through pynvml. {ABSENT}",
    "memory_bytes": "Report all of the GPU's memory, not what is free, and None on a CPU.",
    "device_name": "Report the name of GPU 0. On a CPU take platform.processor() or, if that is empty, "
    "platform.machine().",
}
GPU_FOR_CPU = Cause(
    "gpu_described_for_the_cpu",
    "Look at `device`, and not at whether there is a GPU.",
    "lab1.benchmark.environment_described",
    mistake="The GPU is described although the caller chose the CPU",
)


def require_described(reply: EnvironmentReply, devices: Sequence[str], where: str = "", *, simulated: bool) -> None:
    """Fail unless each description is what the probe found, for the device that it is of."""
    bare, driverless = reply.without_pynvml, reply.without_driver
    require(
        bare["driver"] in (None, reply.driver), f"Environment.driver without pynvml: saw {bare['driver']!r}", ABSENT
    )
    usual = devices[0] if where else "cuda"
    cases: list[tuple[Described, str, object, str]] = [
        *((described, device, reply.driver, "") for described, device in zip(reply.described, devices, strict=True)),
        (bare, usual, bare["driver"], ""),
        (driverless, usual, None, ", while NVML says that the driver is not loaded"),
    ]
    for described, device, driver, unloaded in cases:
        gpu, actual = device == "cuda", dict[str, object](described)
        of_gpu: Mapping[str, object] = {
            "device_name": reply.device_name,
            "memory_bytes": reply.memory_bytes,
            "compute_capability": reply.capability,
        }
        expected: Mapping[str, object] = {
            "python": reply.python,
            "torch": reply.torch,
            "cuda": reply.cuda,
            "driver": driver,
            "device": device,
            "device_name": reply.device_name if gpu else reply.processor,
            "memory_bytes": reply.memory_bytes if gpu else None,
            "compute_capability": reply.capability if gpu else None,
            "profiler": reply.profiler,
            "simulated": simulated,
        }
        for name, value in expected.items():
            hint: str = _HINTS.get(name, ABSENT if value is None else "")
            if not gpu and actual[name] == of_gpu.get(name, value) != value:
                hint = GPU_FOR_CPU
            what = f"Environment.{name} of {device!r}{where}{unloaded}"
            require_equal(actual[name], value, what=what, hint=hint)
