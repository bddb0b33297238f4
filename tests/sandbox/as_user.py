"""A judge that is an ordinary user: takes requests as lines of JSON and answers with replies, until an empty line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

NOBODY = 65534


def become_nobody() -> None:
    """Give up root for good, in a mount namespace where the interpreter's folder can be reached by everybody.

    An interpreter below root's home cannot be read by others. Nothing changes outside this process.
    """
    from gradebox.sandbox import linux

    blocked = _first_closed_folder(sys.base_prefix)
    if blocked is not None:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        interpreter = os.open(sys.base_prefix, os.O_PATH)
        linux.mount("tmpfs", blocked, "tmpfs", 0, "mode=0755")
        os.makedirs(sys.base_prefix)
        linux.mount(f"/proc/self/fd/{interpreter}", sys.base_prefix, None, linux.MS_BIND | linux.MS_REC)
        os.close(interpreter)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _first_closed_folder(path: str) -> str | None:
    """The outermost folder on the way to `path` that others may not enter."""
    parents = [Path(path), *Path(path).parents][::-1]
    return next((str(parent) for parent in parents if not parent.stat().st_mode & 0o001), None)


def main(submission: str, probes: str) -> None:
    from gradebox.sandbox import Limits, Request, Sandbox, SandboxError
    from tests.sandbox import sandbox_runs

    limits = Limits(wall_seconds=30.0, memory_bytes=2**30, tmp_bytes=64 * 2**20, processes=64)
    options = {"preload": sandbox_runs.PRELOAD, "probe_paths": [probes], "limits": limits}
    with Sandbox(Path(submission), sandbox_runs.ENVIRONMENT, **options) as sandbox:
        print(json.dumps({**asdict(sandbox.isolation), "uid": os.getuid()}), flush=True)
        for line in sys.stdin:
            if not line.strip():
                break
            fields = json.loads(line)
            own = fields.pop("limits")
            try:
                reply = sandbox.run(Request(**fields, limits=Limits(**own) if own else None))
                print(json.dumps(asdict(reply)), flush=True)
            except SandboxError as error:
                print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
    main(*sys.argv[1:])
