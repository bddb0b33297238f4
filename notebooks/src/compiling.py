# %% [markdown]
# # torch.compile: fewer kernels
#
# A kernel that does little spends its time on memory: it reads what the one before it has written, and writes what the
# one after it will read. `torch.compile` joins such neighbours, so that numbers stay on the chip. This notebook counts
# what that saves, and shows where it saves nothing. It goes with [Lab 1](lab1.ipynb), [Lab 5](lab5.ipynb) and [launches
# and CUDA graphs](launches.ipynb); it has no tasks, and nothing in it is graded.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open()

# %% [markdown]
# ## 1. A chain of operations
#
# GELU, written by hand, is a chain of operations on single numbers. In eager mode each is a kernel: it reads all of its
# operands from memory and writes all of its result there, for the next one to read again. `torch.compile` makes one
# kernel of the chain (J. Ansel et al. 2024, "PyTorch 2", ASPLOS; H. He 2022, "Making Deep Learning Go Brrrr From First
# Principles").
#
# What each kernel moves, here for 4096 x 4096 numbers, as a virtual GPU's record has it:

# %%
import time

import torch
from torch import nn

import vgpu
from labkit.notebook import pictures_laws

where = ", simulated" if course.simulated else ""


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


programs = {}
with vgpu.attach("T4", values=False, force=True) as gpu:
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.half)
    for name, function in (("eager", gelu), ("compiled", torch.compile(gelu))):
        function(x)
        first = len(gpu.timeline)
        function(x)
        programs[name] = [
            (kernel.name.removeprefix("aten::").split()[0], kernel.bytes)
            for kernel in gpu.timeline[first:]
        ]
    shown = {
        name: [(kernel if len(moved) > 1 else "fused", size) for kernel, size in moved]
        for name, moved in programs.items()
    }
notebook.show(
    pictures_laws.draw_kernels(shown, "The same GELU: eight kernels, or one"),
    "Two rows of bars as long as the bytes moved. Eager: eight kernels one after the other. "
    "Compiled: one kernel, a ninth as long.",
)

# %% [markdown]
# *Kernels as long as the bytes they move.* Count them: an operation with one operand reads and writes, that is twice
# the tensor; one with two operands three times. The fused kernel reads `x` once and writes the result once.
#
# ## 2. What it brings
#
# It depends on what there is to fuse. Each of the next lines is timed on this notebook's GPU. The first call of
# a compiled function compiles, which takes seconds and pays off over many calls.


# %%
def norm_and_gelu(x):
    return gelu(
        (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)
    )


def product(x):
    return x @ x


def timed(function, side):
    with course.times_only(), torch.no_grad():
        x = torch.randn(side, side, device="cuda", dtype=torch.half)
        eager = notebook.seconds_of(lambda: function(x))
        torch._dynamo.reset()
        compiled = torch.compile(function)
        start = time.perf_counter()
        compiled(x)
        torch.cuda.synchronize()
        first_call = time.perf_counter() - start
        return eager, notebook.seconds_of(lambda: compiled(x)), first_call


rows = []
for function, side in ((gelu, 4096), (norm_and_gelu, 4096), (product, 4096), (gelu, 64)):
    eager, compiled, first_call = timed(function, side)
    rows.append(
        (
            f"{function.__name__}, {side} x {side}",
            round(eager * 1e3, 3),
            round(compiled * 1e3, 3),
            round(eager / compiled, 2),
            round(first_call, 1),
        )
    )
notebook.table(
    ("what", "eager, ms", "compiled, ms", "times faster", "first call, s"),
    rows,
    title=course.hardware.name + where,
)

# %% [markdown]
# Bytes that are not moved are the gain of the first two lines, launches that are not made that of the last one. The
# product alone gains nothing: it is one kernel before and after, by the same library.
#
# ## 3. Exercise: predict, then measure
#
# `scale_shift` is three operations on 8192 x 8192 numbers. How many kernels does it launch in eager mode, and how many
# times faster is it compiled, on a T4? (Count the bytes.) And a large linear layer with such a scale behind it, whose
# product takes most of the time: "more than twice as fast", or "less"?

# %%
my_fusion = {
    "kernels of scale_shift, eager": None,
    "scale_shift, times faster": None,
    "linear layer and scale": None,  # "more" or "less"
}


# %%
def scale_shift(x):
    return torch.relu(x * 1.5 + 0.25)


def measure_fusion():
    with vgpu.attach("T4", values=False, force=True) as gpu, torch.no_grad():
        x = torch.randn(8192, 8192, device="cuda", dtype=torch.half)
        layer = nn.Linear(8192, 8192, device="cuda", dtype=torch.half)
        first = len(gpu.timeline)
        scale_shift(x)
        launched = len(gpu.timeline) - first

        def whole(x):
            return scale_shift(layer(x))

        ratios = []
        for function in (scale_shift, whole):
            fused = torch.compile(function)
            ratios.append(
                notebook.seconds_of(lambda f=function: f(x))
                / notebook.seconds_of(lambda f=fused: f(x))
            )
    words = "more" if ratios[1] > 2 else "less"
    return dict(zip(my_fusion, (launched, ratios[0], words), strict=True))


notebook.check_prediction(
    my_fusion,
    measure_fusion,
    because="Each of the three reads and writes all numbers, six passes over memory; fused they are two. The product stays "
    "as it is, so that only what is around it can become faster.",
)

# %% [markdown]
# **Try it.** Where in a transformer block are chains that could be joined, and which of its operations stay what they
# are? What does `torch.compile` do when a length changes from call to call? (`dynamic=True`; the first call with
# another shape.)
