"""`python -m vgpu`: run a script or a module on a virtual GPU. Not here: anything the script could not do itself."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from vgpu.errors import AttachError, SpecError
from vgpu.spec import get_spec, list_specs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vgpu",
        description="Run a Python program on a simulated NVIDIA GPU, or list the GPUs that can be simulated.",
        usage="python -m vgpu [--gpu NAME] [--shapes-only] (script.py | -m module | list) [arguments ...]",
    )
    parser.add_argument("--gpu", default="T4", help="a name from `list`, or a .toml file (default: T4)")
    parser.add_argument("--shapes-only", action="store_true", help="GPU tensors without values: fast, for big models")
    parser.add_argument("--force", action="store_true", help="simulate although real CUDA is present")
    parser.add_argument("--summary", action="store_true", help="print the costliest operations at the end")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    parser.add_argument("program", help="script.py, a module name after -m, or `list`")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    return parser


def _print_specs() -> None:
    print(
        f"{'name':<12} {'memory':>9} {'FP32':>8} {'FP16':>8} {'bandwidth':>11}  (peak figures; all times are modelled)"
    )
    for name in list_specs():
        spec = get_spec(name)
        print(
            f"{name:<12} {spec.memory_bytes / 2**30:>5.1f} GiB {spec.peak_tflops():>8.1f} "
            f"{spec.peak_tflops('float16'):>8.1f} {spec.bandwidth_bytes_per_second / 1e9:>6.0f} GB/s  {spec.title}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for a bad specification, else the program's."""
    options = _parser().parse_args(argv)
    if options.program == "list" and not options.module:
        _print_specs()
        return 0
    try:
        spec = get_spec(options.gpu)
    except SpecError as error:
        print(f"python -m vgpu: {error}", file=sys.stderr)
        return 2
    if not options.module and not Path(options.program).is_file():
        print(f"python -m vgpu: no such file: {options.program}", file=sys.stderr)
        return 2
    from vgpu.api import attach

    try:
        with attach(spec, values=not options.shapes_only, force=options.force) as gpu:
            try:
                return _run(options.program, options.arguments, module=options.module)
            finally:
                if options.summary:
                    print(gpu.summary(), file=sys.stderr)
                mode = ", shapes only" if options.shapes_only else ""
                peak = gpu.memory.settled().peak("allocated_bytes")
                print(
                    f"[vgpu] simulated {spec.title}{mode}: {gpu.now():.4g} s of virtual time, device busy "
                    f"{gpu.utilization:.0%}, peak {peak / 2**20:.1f} MiB; modelled, not measured",
                    file=sys.stderr,
                )
    except AttachError as error:
        print(f"python -m vgpu: {error}", file=sys.stderr)
        return 2


def _run(program: str, arguments: list[str], *, module: bool) -> int:
    sys.argv = [program, *arguments]
    try:
        if module:
            sys.path.insert(0, "")
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
