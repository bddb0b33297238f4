"""torch.finfo and nextafter; recursion over modules instead of named hooks; comparisons without isfinite."""

import math
from pathlib import Path

import torch

from labkit import plotting, program
from labkit.device import open_device
from labkit.results import NumberFormat, save_json


def describe_formats():
    out = []
    for dtype in torch.float16, torch.bfloat16, torch.float32:
        info = torch.finfo(dtype)
        smallest = info.tiny
        while torch.tensor(smallest / 2, dtype=torch.float64).to(dtype).item() > 0:
            smallest /= 2
        name = str(dtype).split(".")[1]
        out.append(
            NumberFormat(
                dtype=name,
                bits=info.bits,
                largest=info.max,
                smallest_normal=info.tiny,
                smallest=smallest,
                epsilon=info.eps,
            )
        )
    return out


def stable_softmax(x, dim=-1):
    y = x.to(torch.float64)
    y = y - y.max(dim=dim, keepdim=True).values
    y = y.exp_()
    y = y / y.sum(dim=dim, keepdim=True)
    return y.to(x.dtype)


def finite(tensor):
    return bool((tensor.detach().abs() < math.inf).all())  # False for NaN as well


def find_nonfinite(model):
    bad = []
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        if not finite(p.grad):
            bad.append(name)
    return bad


def trace_nonfinite(model, inputs, *, dtype=torch.float16):
    class Found(Exception):
        pass

    names = {module: name for name, module in model.named_modules()}

    def check(module, _, output):
        stack = [output]
        while stack:
            item = stack.pop()
            if isinstance(item, (tuple, list)):
                stack.extend(item)
            elif isinstance(item, torch.Tensor) and not finite(item):
                raise Found(names[module])

    handles = []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        for module in names:
            handles.append(module.register_forward_hook(check))
        with torch.no_grad():
            if dtype == torch.float32:
                model(inputs)
            else:
                with torch.autocast(device_type=inputs.device.type, dtype=dtype):
                    model(inputs)
    except Found as found:
        return found.args[0]
    finally:
        while handles:
            handles.pop().remove()
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return None


def classify_gradients(gradients, reference, *, vanished_share=0.05):
    lost = live = 0
    for name in reference:
        g, r = gradients[name], reference[name]
        if not finite(g):
            return "overflow"
        alive = r.abs() > 0
        live += alive.sum().item()
        lost += g[alive].eq(0).sum().item()
    if live and lost / live > vanished_share:
        return "underflow"
    return "healthy"


def plot_formats(formats, path):
    figure, (axis,) = plotting.new_figure("formats")
    axis.bar([f.dtype for f in formats], [math.log2(f.largest) for f in formats])
    return plotting.save_png(figure, path)


def main(argv=None):
    options = program.make_parser("formats", results=Path(__file__).parent / "results").parse_args(argv)
    with open_device(options.device) as device:
        formats = describe_formats()
        program.print_written(
            save_json(options.out / "formats.json", formats, device.provenance()),
            plot_formats(formats, options.out / "formats.png"),
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(program.run(main))
