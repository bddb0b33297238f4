"""`python -m vgpu`: run a program on a virtual GPU, list the GPUs, or calibrate against a real one.

Not here: running the program (`vgpu.tools.run`), its processes (`vgpu.tools.launch`, `vgpu.runtime.children`), what is
left behind (`vgpu.runtime.outputs`).
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from vgpu.device.errors import AttachError, SpecError
from vgpu.device.spec import Spec, get_interconnect, get_spec, list_interconnects, list_specs
from vgpu.runtime import children
from vgpu.runtime.outputs import OutputError, Outputs
from vgpu.tools import launch

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU

_USAGE = """python -m vgpu [options] script.py [arguments ...]
       python -m vgpu [options] -m module [arguments ...]
       python -m vgpu [options] torchrun [torchrun's options] script.py [arguments ...]
       python -m vgpu record -o run.vgpu [options] script.py [arguments ...]
       python -m vgpu price run.vgpu [--help]
       python -m vgpu list [--sources]
       python -m vgpu calibrate [--help]"""
_EXAMPLES = """examples:
  python -m vgpu --gpu T4 train.py --epochs 1          a script that uses device "cuda", unchanged
  python -m vgpu --gpu H100 --shapes-only big.py       no values: models that no CPU could run
  python -m vgpu --summary --picture run.png train.py  where time and memory went
  python -m vgpu --gpus 4 torchrun --nproc-per-node 4 ddp.py

  python -m vgpu record -o run.vgpu --shapes-only big.py
  python -m vgpu price run.vgpu --gpu T4,A100-80GB,H100    the same run on other cards

Values are computed on the CPU; time and memory are those of a modelled GPU: the same on every run,
and not measured."""
# Of a program and its arguments, a recording keeps so many letters.
_LONGEST_PROGRAM = 60


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vgpu",
        usage=_USAGE,
        description="Run a PyTorch program on a simulated NVIDIA GPU.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpu", default="T4", metavar="NAME", help="a name from `list`, or a .toml file (default: T4)")
    parser.add_argument("--gpus", type=int, default=None, metavar="N", help="how many of them (default: 1)")
    parser.add_argument("--interconnect", metavar="NAME", help="what joins several GPUs: a name from `list`, or a file")
    parser.add_argument("--shapes-only", action="store_true", help="GPU tensors without values: fast, for big models")
    parser.add_argument(
        "--races", choices=("warn", "error", "ignore"), help="what a race between streams does (default: warn)"
    )
    parser.add_argument("--force", action="store_true", help="simulate although real CUDA is present")
    outputs = parser.add_argument_group("what to leave behind")
    outputs.add_argument("--summary", action="store_true", help="print where time and memory went")
    outputs.add_argument("--picture", type=Path, metavar="FILE", help="draw the timeline (.png, .svg, .pdf)")
    outputs.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev (.json, .json.gz)"
    )
    outputs.add_argument(
        "--record", "-o", type=Path, metavar="FILE", help="write a recording, to be priced on other cards (.vgpu)"
    )
    outputs.add_argument("--full-traceback", action="store_true", help="show vgpu's own frames in errors, too")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    parser.add_argument("program", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 2 for bad options, else the program's."""
    parser = _parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["record"]:
        words = words[1:]
        if not {"-o", "--record"} & {word.partition("=")[0] for word in words}:
            return _fail("record: say where to write the recording: record -o run.vgpu script.py")
    options = parser.parse_args(words)
    if not options.module and options.program == "list":
        try:
            return _list(options.arguments)
        except BrokenPipeError:  # `python -m vgpu list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    if not options.module and options.program == "calibrate":
        from vgpu.tools.calibrate.__main__ import main as calibrate

        return calibrate(options.arguments)
    if not options.module and options.program == "price":
        from vgpu.tools.price.command import main as price

        return price(options.arguments)
    if options.races is not None:
        os.environ["VGPU_RACES"] = options.races  # children and torchrun's workers have it, too
    outputs = Outputs(options.summary, options.picture, options.trace, options.record, _program(options))
    try:
        spec = _spec(options.gpu)
        if options.interconnect is not None:
            get_interconnect(options.interconnect, spec)
        if options.gpus is not None and options.gpus < 1:
            raise SpecError(f"--gpus {options.gpus}: a machine has at least one GPU")
        launcher = launch.is_launcher(options.program, module=options.module)
        if not (options.module or launcher or Path(options.program).is_file()):
            raise SpecError(f"no such file: {options.program}{_hint(options.program)}")
        outputs.check()
    except (SpecError, OutputError) as error:
        return _fail(str(error))
    try:
        return _launch(options, spec) if launcher else _run(options, spec, outputs)
    except AttachError as error:
        return _fail(str(error))


def _attach(options: argparse.Namespace, spec: Spec) -> AbstractContextManager[VirtualGPU]:
    from vgpu.torch_integration.attach import attach

    return attach(
        spec,
        gpus=options.gpus or 1,
        interconnect=options.interconnect,
        values=not options.shapes_only,
        force=options.force,
    )


def _run(options: argparse.Namespace, spec: Spec, outputs: Outputs) -> int:
    from vgpu.tools.run import run

    children.leave_behind(outputs)
    with _attach(options, spec) as gpu, children.programs_followed(gpu.machine):
        if outputs.recording is not None:
            gpu.machine.record()
        try:
            return run(options.program, options.arguments, module=options.module, full_traceback=options.full_traceback)
        finally:
            rank = gpu.machine.rank
            (outputs if rank is None else outputs.for_rank(rank)).write(gpu)


def _launch(options: argparse.Namespace, spec: Spec) -> int:
    """torchrun: each of its workers is a `python -m vgpu` with the same options."""
    passed = ["--gpu", options.gpu]
    for name in ("gpus", "interconnect", "picture", "trace", "record"):
        value = getattr(options, name)
        passed += [f"--{name}", str(value)] if value is not None else []
    for name in ("shapes_only", "force", "summary", "full_traceback"):
        passed += [f"--{name.replace('_', '-')}"] if getattr(options, name) else []
    return launch.run_launcher(options.arguments, passed, lambda: _attach(options, spec))


def _program(options: argparse.Namespace) -> str:
    words = [f"-m {options.program}" if options.module else Path(options.program).name, *options.arguments]
    text = " ".join(words)
    return text if len(text) <= _LONGEST_PROGRAM else f"{text[: _LONGEST_PROGRAM - 1]}…"


def _fail(text: str) -> int:
    print(f"python -m vgpu: {text}", file=sys.stderr)
    return 2


def _spec(name: str) -> Spec:
    try:
        return get_spec(name)
    except SpecError as error:
        if name.endswith(".toml"):
            raise
        known = list_specs()
        close = [
            candidate
            for candidate in known
            if candidate.lower().startswith(name.lower()) or name.lower().startswith(candidate.lower())
        ]
        close = close or difflib.get_close_matches(name.upper(), known, n=2, cutoff=0.5)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise SpecError(f"{error}{meant}") from None


def _hint(program: str) -> str:
    """A file of a similar name next to the one that is missing."""
    path = Path(program)
    if program.startswith("-"):
        return " (write options of vgpu before the program; `--help` lists them)"
    if path.parent.is_dir():
        close = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
        if close:
            return f"; did you mean {path.with_name(close[0])}?"
    return ""


def _list(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m vgpu list", description="GPUs and interconnects to simulate.")
    parser.add_argument("--sources", action="store_true", help="say where each figure comes from")
    options = parser.parse_args(arguments)
    print(f"{'GPU':<11} {'memory':>9} {'FP32':>7} {'FP16':>7} {'bandwidth':>10}  {'joined by':<10} title")
    for name in list_specs():
        spec = get_spec(name)
        print(
            f"{name:<11} {spec.memory_bytes / 2**30:>5.1f} GiB {spec.peak_tflops():>7.1f} "
            f"{spec.peak_tflops('float16'):>7.1f} {spec.bandwidth_bytes_per_second / 1e9:>5.0f} GB/s  "
            f"{spec.interconnect:<10} {spec.title}"
        )
    print(f"\n{'interconnect':<14} {'bandwidth':>10} {'latency':>9}  title")
    for name in list_interconnects():
        link = get_interconnect(name)
        print(
            f"{name:<14} {link.bandwidth_bytes_per_second / 1e9:>5.4g} GB/s {link.latency_seconds * 1e6:>6.1f} us  "
            f"{link.title}"
        )
    print(
        "\nPeak figures in TFLOPS (dense); bandwidth of an interconnect per GPU and direction. All times are modelled."
    )
    if options.sources:
        _print_sources()
    return 0


def _print_sources() -> None:
    tables = {name: get_spec(name).sources for name in list_specs()}
    tables |= {name: get_interconnect(name).sources for name in list_interconnects()}
    tables["host"] = get_spec(list_specs()[0]).host.sources
    for name, sources in tables.items():
        print(f"\n{name}")
        for figure, source in sources.items():
            print(f"  {figure}: {source}")


if __name__ == "__main__":
    sys.exit(main())
