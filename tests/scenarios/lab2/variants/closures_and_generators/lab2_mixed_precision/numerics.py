"""Comprehensions over state_dict; the model is traced on its copy; softmax by powers of two."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import NumberFormat, save_json

from .readings import dtype_name

RESULTS = Path(__file__).parent / "results"


def describe_formats() -> list[NumberFormat]:
    formats = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        limits = torch.finfo(dtype)
        formats.append(
            NumberFormat(
                dtype=dtype_name(dtype),
                bits=limits.bits,
                largest=limits.max,
                smallest_normal=limits.smallest_normal,
                smallest=limits.smallest_normal * limits.eps,
                epsilon=limits.eps,
            )
        )
    return formats


def stable_softmax(x, dim=-1):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    wide = torch.exp2((wide - torch.amax(wide, dim=dim, keepdim=True)) * math.log2(math.e))
    return wide.div_(wide.sum(dim=dim, keepdim=True)).to(dtype=x.dtype)


def find_nonfinite(model):
    gradients = {name: one.grad for name, one in model.named_parameters()}
    return [name for name, grad in gradients.items() if grad is not None and (~grad.isfinite()).any()]


def trace_nonfinite(model, inputs, *, dtype=torch.float16):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = []

    def watch(name, module):
        def look(_module, _inputs, output):
            if not first and not fine(output):
                first.append(name)

        return module.register_forward_hook(look)

    def fine(output):
        if isinstance(output, tuple):
            return all(map(fine, output))
        return not isinstance(output, Tensor) or bool(output.isfinite().all())

    handles = [watch(*pair) for pair in model.named_modules()]
    grad, cast = torch.no_grad(), torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32)
    grad.__enter__()
    cast.__enter__()
    try:
        model(inputs)
    finally:
        cast.__exit__(None, None, None)
        grad.__exit__(None, None, None)
        for handle in handles:
            handle.remove()
        model.load_state_dict(state)
    return first[0] if first else None


def classify_gradients(gradients, reference, *, vanished_share=0.05):
    here = torch.cat([gradients[name].reshape(-1).float() for name in reference])
    there = torch.cat([reference[name].reshape(-1).float() for name in reference])
    if not here.isfinite().all():
        return "overflow"
    alive = there != 0
    gone = alive & (here == 0)
    if alive.any() and gone.sum().item() / alive.sum().item() > vanished_share:
        return "underflow"
    return "healthy"


def plot_formats(formats: Sequence[NumberFormat], path: Path | str) -> Path:
    figure, (axis,) = plotting.new_figure("Range of each format", x_label="decimal exponent of the absolute value")
    names = [number_format.dtype for number_format in formats]
    bounds = [(one.smallest, one.smallest_normal, one.largest) for one in formats]
    bottom, normal, top = ([math.log10(value) for value in values] for values in zip(*bounds, strict=True))
    for label, left, right, color in (
        ("full precision", normal, top, plotting.COLORS[0]),
        ("subnormal", bottom, normal, plotting.COLORS[1]),
    ):
        widths = [end - start for start, end in zip(left, right, strict=True)]
        axis.barh(names, widths, left=left, height=0.5, color=color, label=label)
    axis.invert_yaxis()
    axis.margins(x=0.03)
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    options = program.make_parser(__doc__ or "", results=RESULTS).parse_args(argv)
    with open_device(options.device) as device:
        formats = describe_formats()
        rows = [
            (one.dtype, one.bits, f"{one.largest:.5g}", f"{one.smallest_normal:.3g}", f"{one.smallest:.3g}",
             f"{one.epsilon:.3g}")
            for one in formats
        ]  # fmt: skip
        columns = ("format", "bits", "largest", "smallest normal", "smallest", "epsilon")
        program.print_table("Floating-point formats", columns, rows)
        written = save_json(options.out / "formats.json", formats, device.provenance())
    # After the block: nothing in this picture is simulated.
    program.print_written(written, plot_formats(formats, options.out / "formats.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
