"""Stand-ins for NVIDIA's device files, in a mount namespace of its own, and what a sandbox there shows of them.

    python -m tests.sandbox.nvidia_devices EMPTY_FOLDER

The stand-ins behave as `/dev/null` does. Prints JSON: what a child sees and can open, with and without a real GPU.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

NULL = (1, 3)
NAMES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1")
THREAD_NAME = "/proc/thread-self/comm"
"""CUDA names its threads there, and does not start where it cannot."""
OTHERS = ("sda", "kmsg")
"""Devices that are no business of a submission."""


def cover_dev(folder: Path) -> None:
    """Put a `/dev` with the stand-ins instead of this process's own, made in an empty folder. Needs root."""
    from gradebox.sandbox import linux

    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", str(folder), "tmpfs", 0, "size=64k,mode=0755")
    for name in ("null", "zero", "random", "urandom", "full"):
        known = os.stat(f"/dev/{name}")
        os.mknod(folder / name, known.st_mode, known.st_rdev)
    for name in (*NAMES, *OTHERS):
        (folder / name).parent.mkdir(exist_ok=True)
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(*NULL))
        os.chmod(folder / name, 0o666)
    (folder / "shm").mkdir()
    linux.mount("tmpfs", str(folder / "shm"), "tmpfs", 0, "size=64m,mode=1777")
    linux.mount(str(folder), "/dev", None, linux.MS_BIND | linux.MS_REC)


def main(folder: str) -> None:
    """Ask a child with a real GPU, and one without."""
    cover_dev(Path(folder))
    from gradebox.sandbox import Request, Sandbox
    from tests.sandbox import sandbox_runs

    paths = [THREAD_NAME, *(f"/dev/{name}" for name in (*NAMES, *OTHERS))]
    options = {
        "preload": sandbox_runs.PRELOAD,
        "probe_paths": [str(sandbox_runs.PROBES)],
        "limits": sandbox_runs.LIMITS,
    }
    report = {}
    environment = replace(sandbox_runs.ENVIRONMENT, devices="grader.rehearsal.devices")  # no driver answers here
    with Sandbox(sandbox_runs.SUBMISSION, environment, **options) as sandbox:
        for device in ("cuda", "cpu"):
            params = {"module": "escapes", "function": "write_to", "paths": paths}
            written = sandbox.run(Request("drive.call", params=params, device=device))
            params = {"module": "escapes", "function": "list_folder", "path": "/dev"}
            listed = sandbox.run(Request("drive.call", params=params, device=device))
            report[device] = {
                "isolation": sandbox.isolation.mode,
                "kinds": [written.kind, listed.kind],
                "written": written.value["returned"] if written.kind == "ok" else str(written.first),
                "seen": listed.value["returned"] if listed.kind == "ok" else str(listed.first),
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
