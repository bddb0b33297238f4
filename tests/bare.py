"""Runs Python where nothing is but Python, make and git: `python -m tests.bare -m pytest ...`, for `make test-all`.

In a mount namespace of its own, what `.ci/run` installs for some tests is covered: those are skipped, and no
other one may look at what this machine happens to have. Needs root or namespaces of an ordinary user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gradebox.sandbox import linux

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
PROGRAMS = (
    *("prometheus", "promtool", "chromium", "chromium-browser", "google-chrome", "gcc", "cc", "clang", "g++"),
    *("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "buildah", "podman", "docker", "shellcheck"),
    *("busybox", "kubectl", "nvidia-smi", "nvcc", "node", "npm"),
)


def brought() -> list[Path]:
    """What the packages of `.ci/run` bring, by the lines of the script itself."""
    lines = SCRIPT.read_text().partition("<<'END'\n")[2].partition("END\n")[0].splitlines()
    return [Path(line.split()[2]) for line in lines]


def hide() -> list[str]:
    """Cover programs and folders in a mount namespace of this process; their names."""
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWNS | (0 if uid == 0 else linux.CLONE_NEWUSER))
    if uid != 0:
        linux.map_own_ids(uid, gid)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    places = {os.path.realpath(place) for name in PROGRAMS if (place := shutil.which(name, path=path))}
    places |= {os.path.realpath(place) for place in brought() if place.exists()}
    with tempfile.NamedTemporaryFile() as nothing:
        os.chmod(nothing.name, 0o644)  # a file that no user may execute
        for place in sorted(places):
            if os.path.isdir(place):
                linux.mount("tmpfs", place, "tmpfs", 0, "size=4k")
            else:
                linux.mount(nothing.name, place, None, linux.MS_BIND)
    return sorted(places)


if __name__ == "__main__":
    hidden = hide()
    print(f"hidden: {', '.join(hidden) or 'nothing, because nothing is here'}", flush=True)
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], check=False).returncode)
