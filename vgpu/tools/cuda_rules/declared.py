"""What PyTorch's own declarations say of its CUDA kernels: native_functions.yaml, which comes with torchgen.

Not here: what a kernel says when it is called (`vgpu.tools.cuda_rules.probe`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_YAML = "torchgen/packaged/ATen/native/native_functions.yaml"


def strict_overloads(packages: Path) -> dict[str, list[str]]:
    """The overloads whose wrapper wants all tensors on one device, a CPU scalar included, in a site-packages folder.

    torchgen writes this check for every CUDA kernel that is not declared with `device_check: NoCheck` (most of those
    use TensorIterator). "structured" kernels have their wrapper's name built in another way than "plain" ones.
    """
    yaml: Any = importlib.import_module("yaml")  # torchgen needs it, too
    entries = yaml.load((packages / _YAML).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    by_name = {entry["func"].partition("(")[0]: entry for entry in entries}
    found: dict[str, list[str]] = {"structured": [], "plain": []}
    for name, entry in sorted(by_name.items()):
        declared = by_name.get(entry.get("structured_delegate", ""), entry)
        if _is_strict(entry, declared):
            found["structured" if declared.get("structured") else "plain"].append(f"aten::{name}")
    return found


def _is_strict(entry: Mapping[str, Any], declared: Mapping[str, Any]) -> bool:
    keys = {key.strip() for listed in declared.get("dispatch") or {} for key in listed.split(",")}
    arguments = entry["func"].rpartition("->")[0]
    several = "Tensor[]" in arguments or len(re.findall(r"\bTensor\b", arguments)) > 1
    return "CUDA" in keys and entry.get("device_check") != "NoCheck" and several
