# %% [markdown]
# # Kernels of your own
#
# What runs on a GPU is a kernel: a program that is launched many times at once, each time for another block of data.
# This notebook looks at what such programs do: which elements are theirs, how many bytes they move, and what happens
# when two of them want the same element. The exercise's tasks are in `labs/kernels_exercise/`.
#
# You need Triton, and no GPU: the virtual one lets Triton's interpreter run kernels and counts what they do. That is
# slow, some milliseconds for each program, so everything here is small.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open(lab="kernels")
lab = (
    course.modules
)  # your own labs/kernels_exercise: edits are picked up without a restart

# %% [markdown]
# ## 1. A program for a block
#
# The kernel below writes into each element the number of the program that owns it. Eleven elements and blocks of four:
# three programs, the last of which has one element too many. Take the mask away, and look at `strayed`.

# %%
import torch
import triton
import triton.language as tl

import vgpu

torch.set_num_threads(1)


@triton.jit
def owners(out_ptr, count, SIZE: tl.constexpr):
    mine = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out_ptr + mine, tl.program_id(0), mask=mine < count)


out = torch.full((11,), -1, device=course.device, dtype=torch.int32)
with vgpu.watch_kernels() as runs:
    owners[(3,)](out, 11, SIZE=4)
print(out.tolist())
print([(run.name, run.programs, run.strayed) for run in runs])

# %% [markdown]
# ## 2. Bytes are what costs
#
# Memory is moved in sectors of 32 bytes. The same copy of 256 KiB, with two ways to share out the elements:
# each program takes neighbours, or every n-th element, as the threads of a loop on a CPU might.


# %%
@triton.jit
def copy(x_ptr, out_ptr, count, SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr):
    if NEIGHBOURS:
        mine = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    else:
        mine = tl.program_id(0) + tl.num_programs(0) * tl.arange(0, SIZE)
    values = tl.load(x_ptr + mine, mask=mine < count)
    tl.store(out_ptr + mine, values, mask=mine < count)


x = torch.randn(2**16, device=course.device)
copied = torch.empty_like(x)
rows = []
for neighbours in (True, False):
    with vgpu.watch_kernels() as runs:
        copy[(16,)](x, copied, x.numel(), SIZE=4096, NEIGHBOURS=neighbours)
    for run in runs:
        way = "neighbours" if neighbours else "every 16th"
        rows.append(
            (way, f"{run.read_bytes / 2**10:.0f}", f"{run.memory_bytes / 2**10:.0f}")
        )
notebook.table(
    ("a program takes", "read by all programs", "through the memory"), rows, title="KiB"
)

# %% [markdown]
# Seven of eight bytes that the second one reads are for nobody. The L2 cache saves it from going to memory eight
# times, as long as all of it fits there.
#
# ## 3. Tiles (Task 6.3)
#
# All programs of a product together read `m n k (1 / tile_n + 1 / tile_m)` numbers. Your `matmul` with tiles of
# several sizes:

# %%
from labkit.results import Tiles

a, b = (torch.randn(128, 128, device=course.device, dtype=torch.float16) for _ in range(2))
sizes, read = (16, 32, 64, 128), []
for size in sizes:
    with vgpu.watch_kernels() as runs:
        lab.matmul.matmul(a, b, tiles=Tiles(m=size, n=size, k=32))
    read.append(sum(run.read_bytes for run in runs) / 2**10)
figure, (axes,) = notebook.new_figure(
    "A product of 128 x 128 x 128",
    x_label="side of a tile",
    y_label="KiB that all programs read",
)
axes.bar([str(size) for size in sizes], read, color=notebook.COLORS[0])
notebook.show(
    figure, "Bars that halve: a tile of twice the side reads each operand half as often."
)

# %% [markdown]
# **Try it.** Where would the bars stop falling for a product of 48 x 48? What do the other tiles do there?
#
# ## 4. A race
#
# Eight programs add their part to one number, by a load and a store. On the virtual GPU, where programs run one after
# the other, the sum is right. On a real one, programs read the same old value at once. `watch_kernels` reports it.


# %%
@triton.jit
def total(x_ptr, out_ptr, SIZE: tl.constexpr, ATOMIC: tl.constexpr):
    part = tl.sum(tl.load(x_ptr + tl.program_id(0) * SIZE + tl.arange(0, SIZE)), axis=0)
    if ATOMIC:
        tl.atomic_add(out_ptr, part)
    else:
        tl.store(out_ptr, tl.load(out_ptr) + part)


x = torch.ones(128, device=course.device)
for atomic in (False, True):
    out = torch.zeros(1, device=course.device)
    with vgpu.watch_kernels() as runs:
        total[(8,)](x, out, SIZE=16, ATOMIC=atomic)
    print(
        "atomic" if atomic else "load and store",
        out.item(),
        [run.races[:1] for run in runs],
    )

# %% [markdown]
# ## 5. Attention that does not grow (Tasks 6.4 and 6.5)
#
# Your `flash_attention`, forward and backward: what its kernels read and compute, without a causal mask and with one.
# A mask should leave little more than half of the work, and no launch may depend on the length.

# %%
rows = []
for causal in (False, True):
    q, k, v = (
        torch.randn(1, 1, 192, 16, device=course.device, requires_grad=True)
        for _ in range(3)
    )
    with vgpu.watch_kernels() as runs:
        lab.flash_attention.flash_attention(q, k, v, causal=causal).sum().backward()
    for run in runs:
        name = f"{run.name}, causal" if causal else run.name
        rows.append((name, run.programs, f"{run.flops / 1e6:.1f}", len(run.races)))
notebook.table(
    ("kernel", "programs", "million FLOPs", "races"), rows, title="192 tokens, one head"
)

# %% [markdown]
# ## 6. The roofline (Task 6.6)
#
# Where would your kernels stand if they took no longer than their bytes, and where would the product be for larger
# sides? Your `matmul_work` and `place`:

# %%
peaks = course.hardware.peaks
if peaks is not None:
    figure, (axes,) = notebook.new_figure(
        "Products in float16", x_label="FLOPs per byte", y_label="attainable TFLOP/s"
    )
    sides = (64, 128, 256, 512, 1024, 2048)
    places = [
        lab.roofline.place(
            f"{side}",
            lab.roofline.matmul_work(side, side, side, 2),
            1e-3,
            peak_flops=peaks.tflops["float16"] * 1e12,
            bytes_per_second=peaks.bandwidth_bytes_per_second,
        )
        for side in sides
    ]
    axes.loglog(
        [place.intensity for place in places],
        [place.attainable_flops / 1e12 for place in places],
        "o-",
        color=notebook.COLORS[0],
    )
    for place in places:
        axes.annotate(place.kernel, (place.intensity, place.attainable_flops / 1e12))
    notebook.show(
        figure,
        "Points, marked with the side of the product, that rise with it and then stay at the peak.",
    )

# %% [markdown]
# **Try it.** From which side on is a product of float32 bound by the multiprocessors, and why is that earlier?
#
# ## 7. Results, report, grade
#
# `python -m labs.kernels_exercise.roofline` writes what the report is compared with. Then fill in
# `labs/kernels_exercise/REPORT.md`. The last cell grades this exercise.
#
# While you work, a cell with `%grade kernels.softmax` asks one criterion, again only what your last edit can have
# changed.

# %%
course.grade()
