"""Formats found by trying; softmax from the logarithm of the sum; a hook for all modules at once; one flat vector."""

from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_hook

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import NumberFormat, save_json


def _last(start, step, dtype):
    """The last of start, step(start), ... that dtype holds, as something else than 0 or infinity."""
    value = start
    while True:
        following = torch.tensor(step(value), dtype=torch.float64).to(dtype).double().item()
        if following in (0.0, float("inf")):
            return value
        value = following


def describe_formats():
    found = []
    for name in ("float16", "bfloat16", "float32"):
        dtype = getattr(torch, name)
        one = torch.ones((), dtype=dtype)
        epsilon = 1.0
        while (one + torch.tensor(epsilon / 2, dtype=dtype)).item() != 1.0:
            epsilon /= 2
        power = _last(1.0, lambda x: 2 * x, dtype)
        smallest = _last(1.0, lambda x: x / 2, dtype)
        found.append(
            NumberFormat(
                dtype=name,
                bits=8 * one.element_size(),
                largest=power * (2 - epsilon),
                smallest_normal=smallest / epsilon,
                smallest=smallest,
                epsilon=epsilon,
            )
        )
    return found


def stable_softmax(x, dim=-1):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    top = wide.max(dim, keepdim=True)[0]
    centred = wide - top
    return torch.exp(centred - centred.exp().sum(dim, keepdim=True).log()).type_as(x)


def find_nonfinite(model):
    names = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and (parameter.grad - parameter.grad).count_nonzero() > 0:
            names.append(name)  # inf - inf and nan - nan are nan, which is not zero
    return names


def trace_nonfinite(model, inputs, *, dtype=torch.float16):
    order = []

    def after_any_module(module, args, output):
        tensors = [part for part in torch.utils._pytree.tree_leaves(output) if torch.is_tensor(part)]
        order.append((module, all(part.isfinite().all().item() for part in tensors)))

    kept = [buffer.clone() for buffer in model.buffers()]
    handle = register_module_forward_hook(after_any_module)
    try:
        with (
            torch.inference_mode(),
            torch.autocast(
                inputs.device.type,
                dtype=torch.float16 if dtype == torch.float32 else dtype,
                enabled=dtype != torch.float32,
            ),
        ):
            model(inputs)
    finally:
        handle.remove()
        with torch.no_grad():
            for buffer, old in zip(model.buffers(), kept, strict=True):
                buffer.copy_(old)
    names = {id(module): name for name, module in model.named_modules()}
    return next((names[id(module)] for module, fine in order if not fine), None)


def classify_gradients(gradients, reference, *, vanished_share=0.05):
    ours = torch.cat([gradients[name].double().flatten() for name in reference])
    theirs = torch.cat([reference[name].double().flatten() for name in reference])
    if not ours.isfinite().all():
        return "overflow"
    live = theirs != 0
    if not live.any():
        return "healthy"
    return "underflow" if (ours[live] == 0).double().mean() > vanished_share else "healthy"


def plot_formats(formats, path):
    figure, (axis,) = plotting.new_figure("Range of each format")
    for row, one in enumerate(formats):
        axis.plot([one.smallest, one.largest], [row, row], linewidth=8, label=one.dtype)
    axis.set_xscale("log")
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    args = program.make_parser("Formats", results=Path(__file__).parent / "results").parse_args(argv)
    with open_device(args.device) as device:
        formats = describe_formats()
        for one in formats:
            print(one)
        program.print_written(
            save_json(args.out / "formats.json", formats, device.provenance()),
            plot_formats(formats, args.out / "formats.png"),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
