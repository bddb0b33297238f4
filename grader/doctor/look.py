"""Run in a process of its own: what PyTorch and the virtual GPU can do. One line of JSON for each thing.

A library that does not load may end the process; what was said before still counts.
"""

from __future__ import annotations

import json
import sys
import warnings


def tell(what: str, **details: object) -> None:
    print(json.dumps({"what": what, **details}), flush=True)


def said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def main() -> None:
    try:
        import torch
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        tell("torch", error=said(error), missing=missing)
        return
    tell("torch", version=str(torch.__version__), cuda=torch.version.cuda)
    try:
        import torchvision

        tell("torchvision", version=str(torchvision.__version__))
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torchvision"
        tell("torchvision", error=said(error), missing=missing)
    _cuda(torch)
    _virtual(torch)


def _cuda(torch: object) -> None:
    cuda = torch.cuda  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            if not cuda.is_available():
                why = " ".join(str(warned[-1].message).split())[:300] if warned else ""
                tell("cuda", available=False, why=why)
                return
            ones = torch.ones(64, 64, device="cuda")  # type: ignore[attr-defined]
            tell("cuda", available=True, right=(ones @ ones).sum().item() == 64.0**3, why="")
        except BaseException as error:
            tell("cuda", available=False, why=said(error))


def _virtual(torch: object) -> None:
    try:
        import vgpu

        with vgpu.attach("T4", force=True) as gpu:
            ones = torch.ones(64, 64, device="cuda")  # type: ignore[attr-defined]
            right = (ones @ ones).sum().item() == 64.0**3
        tell("vgpu", right=right, name=gpu.spec.title)
    except BaseException as error:
        tell("vgpu", error=said(error))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
