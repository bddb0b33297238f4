"""Runs a script or module as `python` would, from inside `python -m vgpu`: `sys.argv`, `sys.path`, exit status, errors.

Not here: options, and attaching the GPU (`vgpu.__main__`, `vgpu.tools.launch`).
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path

# What a shell reports of a program that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED = 130
_MISTAKES = (NameError, AttributeError, AssertionError, LookupError, ImportError)
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def run(program: str, arguments: Sequence[str], *, module: bool, full_traceback: bool = False) -> int:
    """Run the program to its end, with its threads; returns its exit status (1 after an error, 130 after Ctrl-C).

    Errors are printed as Python does, without the frames of runpy and of vgpu unless `full_traceback`.
    """
    sys.argv = [program, *arguments]
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
        _join_threads()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _report(error, full_traceback=full_traceback)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.stdout.flush()
    return 0


def _join_threads() -> None:
    """Python waits for a program's threads before it ends; they still need the GPU."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _report(error: BaseException, *, full_traceback: bool) -> None:
    hidden = 0
    if not full_traceback:
        visited: set[int] = set()
        chain: BaseException | None = error
        while chain is not None and id(chain) not in visited:
            visited.add(id(chain))
            hidden += _strip(chain)
            chain = chain.__cause__ or chain.__context__
    sys.excepthook(type(error), error, error.__traceback__)
    if hidden:
        print(f"[vgpu] {hidden} frames of vgpu are not shown; --full-traceback shows them", file=sys.stderr)


def _strip(error: BaseException) -> int:
    """Leave only the program's and libraries' frames; returns how many of vgpu's own inside it are gone."""
    frames: list[types.TracebackType] = []
    step = error.__traceback__
    while step is not None:
        frames.append(step)
        step = step.tb_next
    names = [frame.tb_frame.f_code.co_filename for frame in frames]
    if isinstance(error, _MISTAKES) and names[-1].startswith(_PACKAGE) and names[-1] != __file__:
        return 0  # a fault of vgpu itself: its fix needs every frame
    # The way into the program: this module and runpy.
    begin = next((at for at, name in enumerate(names) if not name.startswith(_PACKAGE) and "runpy" not in name), 0)
    kept = [frame for frame, name in zip(frames[begin:], names[begin:], strict=True) if not name.startswith(_PACKAGE)]
    if not kept:
        return 0
    rebuilt: types.TracebackType | None = None
    for frame in reversed(kept):
        rebuilt = types.TracebackType(rebuilt, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = rebuilt
    return len(frames) - begin - len(kept)
