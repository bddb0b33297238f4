"""What Linux says of the computer around a GPU: processors, memory, limits, and variables that change what NCCL does.

Only reads; judges nothing. No root is needed. What cannot be read is None.
"""

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/")
UNLIMITED = 2**63 - 1
VARIABLES = re.compile(
    r"(NCCL|TORCH_NCCL|UCX|FI|MLX5|IBV)_[A-Z0-9_]+|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|LD_PRELOAD"
    r"|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|FORCE_PTX_JIT|DISABLE_PTX_JIT|DEVICE_ORDER|MPS_[A-Z_]+)"
    r"|CUBLAS_WORKSPACE_CONFIG|PYTORCH_(CUDA_)?ALLOC_CONF|PYTORCH_NO_CUDA_MEMORY_CACHING|GOMP_CPU_AFFINITY"
)
"""Names of variables that change rates or results; others are nobody's business."""
MOST_CHARACTERS = 60


def measure(root: Path = ROOT) -> dict[str, Any]:
    """Of the computer on which this process runs."""
    online = os.cpu_count() or 1
    return {
        "kernel": _text(root / "proc/sys/kernel/osrelease"),
        "clock_source": _text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "governor": _governors(root),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else online,
        "processors_allowed": _quota(root),
        "busy_ratio": round(os.getloadavg()[0] / online, 3),
        "memory_bytes": _memory(root, "MemTotal"),
        "memory_available_bytes": _memory(root, "MemAvailable"),
        "memory_errors": _edac(root),
        "shared_memory_bytes": _size(root / "dev/shm"),
        "locked_memory_bytes": _limit(resource.RLIMIT_MEMLOCK),
        "open_files": _limit(resource.RLIMIT_NOFILE),
        "up_seconds": _up(root),
        "swapped_bytes": _swapped(root),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of VARIABLES that are set, cut to what a line of a report holds."""
    found = {name: value for name, value in environment.items() if VARIABLES.fullmatch(name)}
    return {name: _printable(value) for name, value in sorted(found.items())}


def _printable(value: str) -> str:
    shown = "".join(character if " " < character <= "~" else " " for character in value).strip()
    return shown[:MOST_CHARACTERS] or "(empty)"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _governors(root: Path) -> str | None:
    """Of all processors; a guest has none."""
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    names = sorted({name for path in paths if (name := _text(path))})
    return ", ".join(names) or None


def _quota(root: Path) -> float | None:
    """Processors that the control group grants; None if it grants all, or nobody tells."""
    words = (_text(root / "sys/fs/cgroup/cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
        return int(words[0]) / int(words[1])
    quota, period = (_number(root / f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    return quota / period if quota and period else None


def _memory(root: Path, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", _text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _swapped(root: Path) -> int | None:
    """Memory that had to go to a disk."""
    total, free = _memory(root, "SwapTotal"), _memory(root, "SwapFree")
    return None if total is None or free is None else total - free


def _up(root: Path) -> float | None:
    """Since the machine was started."""
    words = (_text(root / "proc/uptime") or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def _edac(root: Path) -> list[int] | None:
    """Errors of the memory that the kernel has counted since it was started: corrected, and not."""
    controllers = list((root / "sys/devices/system/edac/mc").glob("mc[0-9]*"))
    counts = [[_number(path / f"{kind}_count") for path in controllers] for kind in ("ce", "ue")]
    if not controllers or any(count is None for kind in counts for count in kind):
        return None
    return [sum(count or 0 for count in kind) for kind in counts]


def _size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks or None


def _limit(kind: int) -> int:
    most, _ = resource.getrlimit(kind)
    return UNLIMITED if most == resource.RLIM_INFINITY else most
