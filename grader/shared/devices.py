"""What a grade runs on: parses `--device` and finds out whether there is an NVIDIA GPU.

Runs in the judge, so it asks NVML and not torch; the sandbox child attaches what is named here.
"""

from __future__ import annotations

from gradebox.devices import Device, DeviceError

DEFAULT_MODEL = "T4"


def parse(option: str) -> Device:
    """Resolve `auto`, `cuda`, `vgpu` or `vgpu:MODEL`.

    Raises:
        DeviceError: for an unknown word, an unknown model, or `cuda` where NVML finds no GPU.
    """
    if option in ("auto", "cuda"):
        name = _nvidia_gpu()
        if name is not None:
            return Device("cuda", name, serial=True)
        if option == "cuda":
            raise DeviceError(
                "--device cuda: no NVIDIA GPU answers here (`nvidia-smi` would say why). "
                "Use --device vgpu to grade on the virtual GPU."
            )
        return _virtual(DEFAULT_MODEL)
    kind, _, model = option.partition(":")
    if kind == "vgpu":
        return _virtual(model or DEFAULT_MODEL)
    raise DeviceError(f"--device {option}: expected auto, cuda, vgpu or vgpu:MODEL")


def _virtual(model: str) -> Device:
    import vgpu

    try:
        spec = vgpu.get_spec(model)
    except (ValueError, KeyError, OSError) as error:
        raise DeviceError(f"--device vgpu:{model}: {error}") from None
    return Device(f"vgpu:{model}", f"virtual {spec.name} (simulated)", simulated=True)


def _nvidia_gpu() -> str | None:
    """The first GPU's name by NVML, or None without a driver or a GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            return None
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return name.decode() if isinstance(name, bytes) else str(name)
    finally:
        pynvml.nvmlShutdown()
