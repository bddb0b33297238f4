"""`python -m vgpu.tools.cuda_rules`: write the tables of what CUDA's kernels take, for the PyTorch of this interpreter.

It asks PyTorch's CUDA build itself, on a stand-in for NVIDIA's libraries: no card is needed, gcc and the headers in the
wheels of CUDA are. It takes about ten minutes. Covered is what OpInfo's operators, layers and optimizers call,
and their backward; of others the CPU's refusals hold. With `--notes FILE`, a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from vgpu.runtime.versions import torch_version
from vgpu.tools.cuda_rules import condense, declared, stand_in

_TABLES = Path(__file__).parents[2] / "runtime/operations/cuda_rules"


def main() -> None:
    """Write `torch-X.Y.json` for the virtual GPU, and for its tests the same by the names of the databases."""
    about = "Write the tables of what CUDA kernels take, for the PyTorch of this interpreter; ten minutes, with gcc."
    parser = argparse.ArgumentParser(prog="python -m vgpu.tools.cuda_rules", description=about)
    parser.add_argument("-o", "--output", type=Path, default=_TABLES, help="folder of the tables that programs read")
    parser.add_argument("--functions", type=Path, help="folder of the tables by OpInfo's names, for tests")
    parser.add_argument("--notes", type=Path, help="keep the notes there; a run that was ended goes on with them")
    options = parser.parse_args()
    packages = Path(torch.__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        notes = options.notes or Path(folder) / "notes"
        environment = stand_in.build(packages, Path(folder))
        command = [sys.executable, "-m", "vgpu.tools.cuda_rules.probe", str(notes)]
        subprocess.run(command, check=True, env=environment)
        items = list(condense.read(notes))
    name = "torch-{}.{}.json".format(*torch_version())
    rules, missing = condense.overloads(items)
    strict = declared.strict_overloads(packages)
    table = {"torch": torch.__version__, "overloads": rules, "missing": missing, "strict": strict}
    _write(options.output / name, table)
    if options.functions:
        _write(options.functions / name, condense.functions(items))
    print(
        f"{name}: {len(items)} operators, {len(rules)} overloads that refuse a dtype, {len(missing)} without a kernel"
    )


def _write(path: Path, table: Mapping[str, object]) -> None:
    """One line for each entry of each part, so that versions can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
