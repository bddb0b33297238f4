# %% [markdown]
# # Small models wait for Python: launches and CUDA graphs
#
# Each operation of PyTorch costs the host some microseconds to launch, and a layer some tens of them: Python,
# `nn.Module`, the dispatcher, the driver. The device needs what its kernels need. The slower of them decides. This
# notebook shows which of the two it is, and two ways out: more work per launch, and fewer launches. A third, fewer
# kernels, is [the next notebook](compiling.ipynb)'s. It goes with [Lab 1](lab1.ipynb) and [Lab 5](lab5.ipynb); it has
# no tasks, and nothing in it is graded.

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
# ## 1. Launch-bound
#
# A stack of 24 blocks (linear layer, GELU, layer norm) of width 512 in float16, for larger and larger batches: how long
# does a call take, and how long its kernels alone, as the profiler adds them up? On a virtual GPU the same is done on a
# card that is several times faster, in a host of about the same age.

# %%
import functools

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import vgpu
from labkit.notebook import pictures_basics, pictures_laws

device = course.device
where = ", simulated" if course.simulated else ""


def stack(blocks=24, width=512):
    with torch.device("cuda"):
        made = [
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
            for _ in range(blocks)
        ]
    return nn.Sequential(*made).half().eval()


def kernel_seconds(work):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.key.startswith("aten::")]
    return sum(event.self_device_time_total for event in events) / 1e6


def at_batch(batch):
    model, x = stack(), torch.randn(batch, 512, device="cuda", dtype=torch.half)

    def call():
        with torch.no_grad():
            model(x)

    return call


machines = {course.hardware.name: course.times_only}
if course.simulated:
    machines["V100"] = lambda: vgpu.attach("V100", values=False, force=True)
batches = (1, 16, 256, 4096, 16384)
calls, kernels, rows = {}, {}, []
for card, machine in machines.items():
    with machine():
        calls[card] = [
            (batch, notebook.seconds_of(at_batch(batch)) * 1e3) for batch in batches
        ]
        kernels[card] = [
            (batch, kernel_seconds(at_batch(batch)) * 1e3) for batch in batches
        ]
    rows += [
        (card, batch, round(whole, 2), round(alone, 2), f"{min(alone / whole, 1):.0%}")
        for (batch, whole), (_, alone) in zip(calls[card], kernels[card], strict=True)
    ]
notebook.show(
    pictures_laws.draw_launch_bound(calls, kernels),
    "Milliseconds of a call over the batch, both logarithmic. The solid lines of both cards are flat "
    "and nearly equal for small batches, far above the dashed lines of their kernels alone; the T4's "
    "bends upwards where the two lines meet, before a batch of 4096, the V100's after it.",
)
notebook.table(
    ("GPU", "batch", "call, ms", "kernels, ms", "device busy"),
    rows,
    title=f"72 kernels{where}",
)

# %% [markdown]
# *A call (solid) and its kernels alone (dashed).* Where the solid line is flat, the time is the host's: 24 times a
# linear layer, an activation and a norm, each with its Python around it. There a faster card brings next to nothing,
# and so do 16 bits, channels last or a better kernel. Where the two lines meet, the device decides, and all of that
# helps.
#
# The first way out costs nothing: a larger batch, as long as the line is flat. The virtual host's costs per call were
# measured with an H100, and hold for a T4 or a V100 by what was published of networks with a single image (*How we
# know*, "launch-bound inference"). Hosts differ: newer cards mostly sit in newer ones, and yours may be twice as fast.
# The picture is the same.
#
# ### Exercise: predict, then measure
#
# Replace each `None` by a number, run the cell, then the next one. How many *times* faster than on a T4 is a call of
# this stack on a V100, with 16 samples, and with 65536? (The data sheets have 65 and 125 TFLOPS in float16, and 320 and
# 900 GB/s.) And how many times as long does it take on a T4 with 48 blocks instead of 24, for 16 samples? A prediction
# within a factor of 1.4 counts as found.

# %%
my_launches = {
    "V100 over T4, 16 samples": None,
    "V100 over T4, 65536 samples": None,
    "48 blocks over 24, 16 samples": None,
}


# %%
def measure_launches():
    times = {}
    for card in ("T4", "V100"):
        with vgpu.attach(card, values=False, force=True):
            times[card] = [notebook.seconds_of(at_batch(batch)) for batch in (16, 65536)]
    with vgpu.attach("T4", values=False, force=True):
        deep, x = stack(48), torch.randn(16, 512, device="cuda", dtype=torch.half)
        with torch.no_grad():
            longer = notebook.seconds_of(lambda: deep(x)) / times["T4"][0]
    ratios = [slow / fast for slow, fast in zip(times["T4"], times["V100"], strict=True)]
    return dict(zip(my_launches, (*ratios, longer), strict=True))


notebook.check_prediction(
    my_launches,
    measure_launches,
    within=1.4,
    because="With 16 samples both cards wait for a host of the same age, and twice the blocks are twice the launches. With 65536 "
    "the kernels decide: products by the peak in float16, everything else by the memory's rate.",
)

# %% [markdown]
# ## 2. CUDA graphs: one launch for all kernels
#
# A CUDA graph records what a program asks of the device, once, and asks it again with a single launch (CUDA C++
# Programming Guide, "CUDA Graphs"; `torch.cuda.CUDAGraph`). No kernel becomes faster, and none is left out. What is
# gone is Python between them. Host and device during four blocks of the stack, on a virtual T4:


# %%
def captured(model, x):
    """A graph of model(x), and its output: warmed up on a stream of its own, as PyTorch's documentation says."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(x)
    return graph, output


def four_blocks(with_graph):
    def prepare():
        model, x = stack(4), torch.randn(256, 512, device="cuda", dtype=torch.half)
        if with_graph:
            graph, _ = captured(model, x)
            return graph.replay

        def call():
            with torch.no_grad():
                model(x)

        call()
        return call

    return prepare


eager = pictures_basics.record_timeline(four_blocks(False))
replay = pictures_basics.record_timeline(four_blocks(True))
launched = min(span.end for span in replay if span.kind == "launch")  # all kernels at once
replay.append(pictures_basics.Span("host", "launch", 0.0, launched))
notebook.show(
    pictures_basics.draw_timelines(
        {"eager": eager, "replay of a graph": replay},
        "One launch instead of twelve: the kernels move together",
    ),
    "Timelines of host and device. Eager: twelve launches one after the other, and short kernels "
    "with gaps between them. Replay: one launch, then all kernels without a gap, done in a "
    "fraction of the time.",
)

# %% [markdown]
# *Launches of the host above, kernels below.* The gaps are gone. Now all three ways on this notebook's GPU, for a batch
# that is launch-bound and for one that is not:

# %%
rows = []
for batch in (16, 16384):
    with course.times_only(), torch.no_grad():
        torch._dynamo.reset()
        model, x = stack(), torch.randn(batch, 512, device="cuda", dtype=torch.half)
        compiled = torch.compile(model)
        graph, _ = captured(model, x)
        fused_graph, _ = captured(compiled, x)
        ways = {
            "eager": functools.partial(model, x),
            "torch.compile": functools.partial(compiled, x),
            "CUDA graph": graph.replay,
            "CUDA graph of the compiled model": fused_graph.replay,
        }
        seconds = {way: notebook.seconds_of(work) for way, work in ways.items()}
    rows += [
        (batch, way, round(value * 1e3, 3), round(seconds["eager"] / value, 1))
        for way, value in seconds.items()
    ]
notebook.table(
    ("batch", "way", "call, ms", "times faster"), rows, title=course.hardware.name + where
)

# %% [markdown]
# Launch-bound, the graph wins: it takes what the kernels take. Device-bound, it brings nothing, and `torch.compile`
# brings what it saves in memory traffic: [how it does that](compiling.ipynb). `torch.compile(mode="reduce-overhead")`
# does both at once.
#
# ### What a graph remembers
#
# A graph knows addresses and numbers, not names. It reads the *memory* of the tensors that it was recorded with, and
# everything that Python decided is decided: a number, an `if`, a shape. To use other inputs, copy them into the
# old tensor. Real values, on this notebook's GPU:
#
# ### Exercise: predict, then measure
#
# The graph below computes `inputs * factor`, recorded with a factor of 2 and with inputs that are all 1. What is the
# first number of its output after each of these lines? And how many times faster than eager is a replay of the stack
# with 16384 samples on a T4? (The numbers must be exact; the last one within a tenth.)
#
#     (a)  inputs.fill_(3);                        graph.replay()
#     (b)  inputs = torch.full_like(inputs, 5);    graph.replay()
#     (c)  factor = 10;                            graph.replay()

# %%
my_graph = {
    "(a) after fill_": None,
    "(b) after a new tensor": None,
    "(c) after another factor": None,
    "replay, 16384 samples, times faster": None,
}


# %%
def measure_graph():
    inputs, factor = torch.ones(4, device=device), 2
    graph, output = captured(lambda x: x * factor, inputs)
    values = []
    inputs.fill_(3)
    graph.replay()
    values.append(output[0].item())
    kept = inputs  # to drop the old tensor is to drop the graph's memory
    inputs = torch.full_like(inputs, 5)
    graph.replay()
    values.append(output[0].item())
    factor = 10
    graph.replay()
    values.append(output[0].item())
    del kept
    with vgpu.attach("T4", values=False, force=True), torch.no_grad():
        model, x = stack(), torch.randn(16384, 512, device="cuda", dtype=torch.half)
        eager = notebook.seconds_of(lambda: model(x))
        values.append(eager / notebook.seconds_of(captured(model, x)[0].replay))
    return dict(zip(my_graph, values, strict=True))


notebook.check_prediction(
    my_graph,
    measure_graph,
    within=1.1,
    because="fill_ writes into the memory that the graph reads. A new tensor has another address, of which the graph knows "
    "nothing, and the factor was 2 when it was recorded. With 16384 samples the kernels take longer than their launches.",
)

# %% [markdown]
# **Try it.** Put a `print` into `captured`'s model: how often does it speak? Let the model look at a value
# (`if x.sum() > 0`): what does the capture say, and why can it not do otherwise?
