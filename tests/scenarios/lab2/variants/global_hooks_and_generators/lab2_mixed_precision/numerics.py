"""Task 2.2: the numbers themselves: what 16 bits can hold, and how to find out what they could not.

Not for training (stability_tests.py).

Run: python -m labs.lab2_mixed_precision.numerics
"""

import math
import sys
from collections.abc import Mapping, Sequence
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


class _Found(Exception):
    """Ends a forward pass at the first layer that is not finite."""


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (tuple, list)) else []


def describe_formats() -> list[NumberFormat]:
    """Range and precision of float16, bfloat16 and float32, in this order.

    Returns:
        One `NumberFormat` each. float16, for one, goes from 2^-24 (the smallest subnormal number; from 2^-14 on with
        full precision) to 65504, and the next number after 1 is 1 + 2^-10.

    Source: IEEE 754-2019, table 3.5; `torch.finfo`.
    """

    def described(dtype: torch.dtype) -> NumberFormat:
        info = torch.finfo(dtype)
        return NumberFormat(
            dtype=dtype_name(dtype),
            bits=torch.empty(0, dtype=dtype).element_size() * 8,
            largest=float(info.max),
            smallest_normal=float(info.tiny),
            smallest=math.ldexp(info.tiny, round(math.log2(info.eps))),
            epsilon=float(info.eps),
        )

    return list(map(described, (torch.float16, torch.bfloat16, torch.float32)))


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
    rows = x.detach().movedim(dim, 0) if not x.requires_grad else x.movedim(dim, 0)
    rows = rows.to(torch.promote_types(x.dtype, torch.float32))
    powers = torch.exp(rows - rows.max(0).values)
    return torch.div(powers, powers.sum(0)).movedim(0, dim).to(x.dtype)


def find_nonfinite(model: nn.Module) -> list[str]:
    """Names of the parameters whose gradient holds NaN or an infinity.

    Call it after backward and *before* the optimizer's step: after it, the damage is in the weights.

    Args:
        model: after a backward pass; parameters without gradient are fine.

    Returns:
        Names as in `model.named_parameters()`, in that order; empty if all is well. Finite numbers are well, however
        large, and what is in the weights does not matter here.
    """
    names = []
    for name, parameter in model.named_parameters():
        if (gradient := parameter.grad) is not None:
            # inf - inf and nan - nan are not 0.
            difference = gradient.detach() - gradient.detach()
            if difference.ne(0).any():
                names.append(name)
    return names


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
    names = {id(module): name for name, module in model.named_modules()}
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    def look(module: nn.Module, arguments: object, output: object) -> None:
        if id(module) in names and any(not tensor.isfinite().all() for tensor in _tensors(output)):
            raise _Found(names[id(module)])

    hook = register_module_forward_hook(look)
    try:
        with torch.inference_mode(False), torch.no_grad():
            if dtype is torch.float32:
                model(inputs)
            else:
                with torch.autocast(inputs.device.type, dtype):
                    model(inputs)
    except _Found as found:
        return str(found.args[0])
    finally:
        hook.remove()
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
    return None


def classify_gradients(
    gradients: Mapping[str, Tensor], reference: Mapping[str, Tensor], *, vanished_share: float = 0.05
) -> Literal["overflow", "underflow", "healthy"]:
    """Say what 16 bits did to gradients, compared with those of the same loss in float32.

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
    names = list(reference)
    ours = torch.cat([gradients[name].flatten().double() for name in names] or [torch.zeros(0)])
    theirs = torch.cat([reference[name].flatten().double() for name in names] or [torch.zeros(0)])
    if not ours.isfinite().all():
        return "overflow"
    alive = theirs.nonzero().squeeze(1)
    gone = int((ours[alive] == 0).sum())
    return "underflow" if len(alive) and gone > vanished_share * len(alive) else "healthy"


def plot_formats(formats: Sequence[NumberFormat], path: Path | str) -> Path:
    """Draw from where to where each format goes, with full precision and subnormal part distinct.

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
