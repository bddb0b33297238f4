"""The command `python -m vgpu calibrate`. Not here: measuring, comparing, fitting."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgpu.device.errors import SpecError
from vgpu.device.spec import Spec, get_spec, list_specs
from vgpu.tools.calibrate import compare, suggest

_DESCRIPTION = """Run the same workloads on this machine's NVIDIA GPU and on the virtual one, and print predicted
against measured time and memory with their ratios. Needs a real GPU, free for some minutes."""


class CalibrationError(Exception):
    """Calibration cannot be done here; the text says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 when nothing could be compared."""
    parser = argparse.ArgumentParser(prog="python -m vgpu calibrate", description=_DESCRIPTION)
    parser.add_argument("--gpu", metavar="SPEC", help="what to predict with (default: the GPU of the same name)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file")
    parser.add_argument("--suggest", action="store_true", help="print a spec with the measured figures (TOML)")
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="take the measurement from a file of --json instead of this GPU"
    )
    parser.add_argument(
        "--host", action="store_true", help="only how fast this machine launches work: ten seconds, one line for a file"
    )
    options = parser.parse_args(argv)
    try:
        if options.host:
            return _host(options.gpu)
        if options.json is not None and not options.json.parent.is_dir():
            raise CalibrationError(f"{options.json} cannot be written: there is no folder {options.json.parent}")
        chosen = None if options.gpu is None else get_spec(options.gpu)
        measured = _from_file(options.measured) if options.measured is not None else _on_real_gpu()
        spec = chosen or _matching(measured["machine"])
        predicted = measure_apart("--virtual", options.gpu or spec.name)
        rows = compare.compare(predicted, measured)
        print(compare.text(spec, rows, measured["machine"]))
        if options.suggest:
            print(f"\n{suggest.toml(spec, rows, measured)}", end="")
    except (CalibrationError, SpecError, ValueError) as error:
        print(f"python -m vgpu calibrate: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        text = json.dumps(compare.document(spec, predicted, measured), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
        print(f"\nwritten to {options.json}")
    return 0


def _host(gpu: str | None) -> int:
    _require_gpu()
    import torch

    from vgpu.tools.calibrate import host

    properties = torch.cuda.get_device_properties(0)
    spec = (
        _matching({"gpu": properties.name, "memory_bytes": properties.total_memory}) if gpu is None else get_spec(gpu)
    )
    if spec.name not in list_specs():
        raise CalibrationError(f"{spec.name} is a spec of your own: name one of {', '.join(list_specs())} with --gpu")
    ratios = host.slowness(spec)
    for name, ratio in ratios.items():
        print(f"{name:16} {ratio:5.2f} times what the entry of {spec.name} says", file=sys.stderr)
    print("put this line into a file, here.toml, and run with --gpu here.toml:", file=sys.stderr)
    print(host.line(spec, ratios))
    return 0


def _on_real_gpu() -> dict[str, Any]:
    _require_gpu()
    print("measuring on the real GPU ...", file=sys.stderr, flush=True)
    return measure_apart()


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise CalibrationError(
            f"needs a real NVIDIA GPU, and PyTorch {torch.__version__} finds none here (torch.cuda.is_available() is "
            "False). Run it on a machine with one; `python -m vgpu list` shows what can be simulated without"
        )


def _matching(machine: dict[str, Any]) -> Spec:
    spec = compare.match_spec(machine["gpu"], machine["memory_bytes"])
    if spec is None:
        raise CalibrationError(f"no built-in GPU is a {machine['gpu']}: name a spec or a .toml file with --gpu")
    return spec


def _from_file(path: Path) -> dict[str, Any]:
    try:
        measured: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["measured"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise CalibrationError(f"{path} holds no measurement: {error!r}") from None
    return measured


def measure_apart(*options: str) -> dict[str, Any]:
    """`vgpu.tools.calibrate.measure` in a process of its own, so that real and virtual GPU both begin afresh."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        command = [sys.executable, "-m", "vgpu.tools.calibrate.measure", str(path), *options]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False)
        if done.returncode != 0 or not path.is_file():
            raise CalibrationError(f"the measuring process ended with status {done.returncode}")
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result


if __name__ == "__main__":
    sys.exit(main())
