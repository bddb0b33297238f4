"""Formats from their bit counts, softmax by logsumexp, forward hooks by a class, counts in NumPy."""

import dataclasses
import pathlib

import numpy as np
import torch

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import NumberFormat, save_json

FORMATS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23)}
"""Bits of exponent and of fraction."""


def describe_formats():
    described = []
    for name, (exponent_bits, fraction_bits) in FORMATS.items():
        bias = 2 ** (exponent_bits - 1) - 1
        epsilon = 2.0**-fraction_bits
        described.append(
            NumberFormat(
                dtype=name,
                bits=1 + exponent_bits + fraction_bits,
                largest=(2 - epsilon) * 2.0**bias,
                smallest_normal=2.0 ** (1 - bias),
                smallest=2.0 ** (1 - bias - fraction_bits),
                epsilon=epsilon,
            )
        )
    return tuple(described)


def stable_softmax(x, dim=-1):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.exp(wide - torch.logsumexp(wide, dim=dim, keepdim=True)).type(x.dtype)


def find_nonfinite(model):
    named = ((name, parameter.grad) for name, parameter in model.named_parameters())
    # x - x is 0 for numbers, and NaN for NaN and infinities.
    return tuple(name for name, grad in named if grad is not None and ((grad - grad) != 0).any().item())


class Watcher:
    """Hooks for the length of a with-block."""

    def __init__(self, model):
        self.model = model
        self.first = None

    def look(self, name):
        def hook(_module, _inputs, output):
            if self.first is None and not all(np.isfinite(self.extreme(tensor)) for tensor in self.tensors(output)):
                self.first = name

        return hook

    def tensors(self, output):
        if torch.is_tensor(output):
            yield output
        elif isinstance(output, tuple):
            for part in output:
                yield from self.tensors(part)

    @staticmethod
    def extreme(tensor):
        return tensor.detach().float().abs().max().cpu().numpy()

    def __enter__(self):
        self.before = [buffer.detach().cpu().numpy().copy() for buffer in self.model.buffers()]
        self.handles = [module.register_forward_hook(self.look(name)) for name, module in self.model.named_modules()]
        return self

    def __exit__(self, *exception):
        for handle in self.handles:
            handle.remove()
        for buffer, before in zip(self.model.buffers(), self.before, strict=True):
            buffer.data.copy_(torch.from_numpy(np.asarray(before)))


def trace_nonfinite(model, inputs, *, dtype=torch.float16):
    use_autocast = dtype in (torch.float16, torch.bfloat16)
    with Watcher(model) as watcher, torch.inference_mode():
        if use_autocast:
            with torch.autocast(inputs.device.type, dtype=dtype):
                model(inputs)
        else:
            model(inputs)
    return watcher.first


def classify_gradients(gradients, reference, *, vanished_share=0.05):
    names = list(reference)
    low = np.concatenate([gradients[name].detach().cpu().double().numpy().ravel() for name in names])
    high = np.concatenate([reference[name].detach().cpu().double().numpy().ravel() for name in names])
    if not np.isfinite(low).all():
        return "overflow"
    live = high != 0
    lost = live & (low == 0)
    return "underflow" if lost.sum() > vanished_share * max(1, live.sum()) else "healthy"


def plot_formats(formats, path):
    figure, (axis,) = plotting.new_figure("formats", x_label="log10")
    for row, one in enumerate(formats):
        axis.plot([np.log10(one.smallest), np.log10(one.largest)], [row, row], linewidth=8, label=one.dtype)
    axis.legend()
    return plotting.save_png(figure, path)


def main(argv=None):
    options = program.make_parser("formats", results=pathlib.Path(__file__).parent / "results").parse_args(argv)
    with open_device(options.device) as device:
        formats = describe_formats()
        for one in formats:
            print(dataclasses.asdict(one))
        save_json(options.out / "formats.json", formats, device.provenance())
        plot_formats(formats, options.out / "formats.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
