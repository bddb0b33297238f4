"""Judges descriptions of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.run.assertions import require, require_equal
from grader.lab1.benchmark.cases import Described, EnvironmentReply

ABSENT = "whatever a machine lacks is None, never an exception and never a made-up value"
_HINTS = {
    "cuda": "what PyTorch was built for",
    "driver": f"ask NVML through pynvml; {ABSENT}",
    "memory_bytes": "all of the GPU's memory, not what is free; None on a CPU",
    "device_name": "of GPU 0, or platform.processor() and, where that says nothing, platform.machine()",
}


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
            hint = _HINTS.get(name, ABSENT if value is None else "")
            what = f"Environment.{name} of {device!r}{where}{unloaded}"
            require_equal(actual[name], value, what=what, hint=hint)
