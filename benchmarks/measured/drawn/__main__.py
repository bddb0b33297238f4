"""`python -m benchmarks.measured.drawn OUT.json --seconds 60` adds measurements of this machine's GPU to a file.

If the file exists, its entries are kept and their cases are not measured again. Ctrl-C and SIGTERM end the run early;
the file then holds what was measured until then.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from types import FrameType

import torch

import vgpu
from benchmarks.measured import record
from benchmarks.measured.case import simulated
from benchmarks.measured.drawn import run, store
from benchmarks.measured.drawn.families import FAMILIES

_UNUSABLE_FILE = 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured.drawn", description=__doc__)
    parser.add_argument("file", type=Path, metavar="OUT.json")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin nothing new after so long")
    parser.add_argument("--known", type=Path, nargs="+", default=(), metavar="FILE", help="skip the cases of these")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the cases")
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=(), metavar="NAME")
    parser.add_argument("--no-kernel-names", action="store_true", help="start no profiler")
    parser.add_argument("--virtual", metavar="GPU", help="rehearse on a virtual GPU: its times are not measurements")
    parser.add_argument("--values", action="store_true", help="let the virtual GPU compute values; Triton needs them")
    return parser.parse_args()


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(chosen: argparse.Namespace) -> int:
    torch.zeros(1, device="cuda")
    try:
        kept = store.Store(chosen.file, record.about() | {"virtual": simulated()})
        known = kept.ids() | store.ids_of(chosen.known)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return _UNUSABLE_FILE
    with kept:
        before = len(kept.ids())
        try:
            code = run.measure(
                known, chosen.seconds, kept.add, seed=chosen.seed, families=chosen.families,
                kernel_names=not chosen.no_kernel_names,
            )  # fmt: skip
        except KeyboardInterrupt:
            code = run.DONE
    left = len(run.remaining(kept.ids() | known, chosen.families))
    print(f"{chosen.file}: {len(kept.ids()) - before} new cases, {left} left", flush=True)
    if code == run.DEVICE_LOST:
        print("an error has made the GPU unusable for this process: run the command again", file=sys.stderr)
    return code


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)  # a script that starts this in the background has it ignored
    virtual = vgpu.attach(chosen.virtual, values=chosen.values) if chosen.virtual else contextlib.nullcontext()
    try:
        with virtual:
            return _run(chosen)
    except KeyboardInterrupt:  # before anything was measured, or once more while the file was being written
        return run.DONE


if __name__ == "__main__":
    sys.exit(main())
