"""Task 2.2: the numbers themselves: what 16 bits can hold, and how to find out what they could not.

Not for training (stability_tests.py).

Run: python -m labs.lab2_mixed_precision.numerics
"""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import NumberFormat, save_json

from .readings import dtype_name

RESULTS = Path(__file__).parent / "results"


def describe_formats() -> list[NumberFormat]:
    """Range and precision of float16, bfloat16 and float32, in this order.

    Returns:
        One `NumberFormat` each. float16, for one, goes from 2^-24 (the smallest subnormal number; from 2^-14 on with
        full precision) to 65504, and the next number after 1 is 1 + 2^-10.

    Source: IEEE 754-2019, table 3.5; `torch.finfo`.
    """
    # --- solution: task 2.2 ---
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
    # --- end ---


def stable_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`, without overflow for any finite x: the maximum is subtracted first.

    Write it yourself, without any softmax or log_softmax of PyTorch.

    Args:
        x: any shape; float16, bfloat16, float32 or float64. Minus infinity counts as "never", as in a mask, as long as
            one number along `dim` is finite.
        dim: along which the results add up to 1.

    Returns:
        The same shape and dtype as x, which stays as it is. Sixteen bits are computed in float32 and rounded at the
        end, as autocast does it: a sum of 70 000 ones would be infinite in float16.

    Source: https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
    """
    # --- solution: task 2.2 ---
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    exponentials = (wide - wide.amax(dim, keepdim=True)).exp()
    return (exponentials / exponentials.sum(dim, keepdim=True)).to(x.dtype)
    # --- end ---


def find_nonfinite(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradient holds NaN or an infinity.

    Call it after backward and *before* the optimizer's step: after it, the damage is in the weights.

    Args:
        model: after a backward pass; parameters without gradient are fine.

    Returns:
        Names as in `model.named_parameters()`, in that order; empty if all is well. Finite numbers are well, however
        large, and what is in the weights does not matter here.
    """
    # --- solution: task 2.2 ---
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all()
    ]
    # --- end ---


def trace_nonfinite(model: nn.Module, inputs: Tensor, *, dtype: torch.dtype = torch.float16) -> str | None:
    """Name of the first layer whose output holds NaN or an infinity in a forward pass.

    Args:
        model: on the device of the inputs; it runs in the modes that it comes in, in which another batch norm or
            dropout would compute something else. The modes of its modules, its parameters, gradients, buffers (a batch
            norm in training mode counts and averages) and the hooks that it has already stay as they are, and no hook
            stays behind, not even when forward fails.
        inputs: finite numbers, shape as the model wants it.
        dtype: of autocast; torch.float32: no autocast.

    Returns:
        The name as in `model.named_modules()` of the first module that *returns* such an output, in the order in which
        modules return (a layer returns before the block around it, and the model itself, whose name is "", at last);
        None if there is none. Outputs are tensors, or tuples of tensors, which may hold tuples again: nn.LSTM returns
        (output, (h, c)).
    """
    names = {module: name for name, module in model.named_modules()}
    bad: list[str] = []

    def look(module: nn.Module, _: object, output: object) -> None:
        if module in names and not all(bool(part.isfinite().all()) for part in _parts(output)):
            bad.append(names[module])

    with contextlib.ExitStack() as stack:
        for buffer in model.buffers():
            stack.callback(buffer.copy_, buffer.clone())
        stack.callback(register_module_forward_hook(look).remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype is not torch.float32))
        model(inputs)
    return next(iter(bad), None)


def _parts(output: object) -> Iterator[Tensor]:
    """The tensors of an output, however deep."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _parts(part)


def classify_gradients(
    gradients: Mapping[str, Tensor], reference: Mapping[str, Tensor], *, vanished_share: float = 0.05
) -> Literal["overflow", "underflow", "healthy"]:
    """Say what 16 bits did to gradients, beside those of the same loss in float32.

    - overflow: at least one number of `gradients` is infinite or NaN; this goes before underflow.
    - underflow: of the numbers that are not 0 in `reference`, all parameters together, more than `vanished_share` are
      exactly 0 in `gradients`. Zeros of the reference (units that ReLU switched off) do not count.
    - healthy: neither, also where all of `reference` is 0.

    Overflow wants a smaller loss scale, underflow a larger one.

    Args:
        gradients: by parameter, of any floating-point dtype, as backward left them.
        reference: the same names and shapes, from a backward pass in float32, all finite.
        vanished_share: ratio, from 0 to 1.
    """
    # --- solution: task 2.2 ---
    if not all(torch.isfinite(gradient).all() for gradient in gradients.values()):
        return "overflow"
    present = sum(int((value != 0).sum()) for value in reference.values())
    vanished = sum(int(((value != 0) & (gradients[name] == 0)).sum()) for name, value in reference.items())
    return "underflow" if vanished > vanished_share * present else "healthy"
    # --- end ---


def plot_formats(formats: Sequence[NumberFormat], path: Path | str) -> Path:
    """Draw from where to where each format goes, full precision and subnormal part told apart.

    Args:
        formats: from `describe_formats`.
        path: the PNG file to write.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written.
    """
    figure, (axis,) = plotting.new_figure("Range of each format", x_label="decimal exponent of the absolute value")
    names = [number_format.dtype for number_format in formats]
    bounds = [
        (number_format.smallest, number_format.smallest_normal, number_format.largest) for number_format in formats
    ]
    bottom, normal, top = ([math.log10(value) for value in values] for values in zip(*bounds, strict=True))
    for label, left, right, color in (
        ("full precision", normal, top, plotting.COLORS[0]),
        ("subnormal", bottom, normal, plotting.COLORS[1]),
    ):
        widths = [end - start for start, end in zip(left, right, strict=True)]
        axis.barh(names, widths, left=left, height=0.5, color=color, label=label)
    axis.invert_yaxis()
    axis.use_sticky_edges = False  # a bar's end shows
    axis.margins(x=0.03)
    axis.legend(frameon=False)
    return plotting.save_png(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Describe the formats; print a table; write OUT/formats.json and OUT/formats.png.

    Returns:
        0.
    """
    options = program.make_parser(__doc__ or "", results=RESULTS).parse_args(argv)
    with open_device(options.device) as device:
        formats = describe_formats()
        rows = [
            (number_format.dtype, number_format.bits, f"{number_format.largest:.5g}",
             f"{number_format.smallest_normal:.3g}", f"{number_format.smallest:.3g}", f"{number_format.epsilon:.3g}")
            for number_format in formats
        ]  # fmt: skip
        columns = ("format", "bits", "largest", "smallest normal", "smallest", "epsilon")
        program.print_table("Floating-point formats", columns, rows)
        written = save_json(options.out / "formats.json", formats, device.provenance())
    # After the block: nothing in this picture is simulated.
    program.print_written(written, plot_formats(formats, options.out / "formats.png"))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
