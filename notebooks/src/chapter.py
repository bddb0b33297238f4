# %% [markdown]
# # Training on GPUs: from one tensor to several machines
#
# This chapter goes the whole way once, in small steps that you can run: devices, memory, data loading, accumulation,
# several GPUs, mixed precision, profiling, benchmarking, several machines. Each section says which lab goes deeper.
#
# You need no GPU. Without one, everything below runs on a *virtual GPU*: values are really computed, times and bytes
# are those of a model of an NVIDIA T4.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example: get the course
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open()

# %% [markdown]
# ## 1. Devices
#
# Every tensor lives on a device. Operations run where their inputs live, and inputs on different devices are an error,
# not a silent copy.

# %%
import time

import torch
from torch import nn

from labkit.notebook import pictures_basics as pictures

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_host = torch.randn(3, 3)
on_device = on_host.to(device)  # a copy, unless it is there already
print(device, "|", torch.cuda.get_device_name(), "|", on_device.device)
try:
    on_host + on_device
except RuntimeError as error:
    print("RuntimeError:", str(error).splitlines()[0])

# %% [markdown]
# Three habits make a program run on any device:
#
# - choose the device once, at the top, and pass it on; never write `"cuda"` inside of a function;
# - `model.to(device)` moves a module *in place* and returns it; `tensor.to(device)` returns a *new* tensor. Forgetting
#   the assignment is harmless for the one and a bug for the other;
# - make tensors where they are used: `torch.zeros(n, device=device)` instead of `torch.zeros(n).to(device)`.

# %%
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters())  # after the model was moved
inputs = torch.randn(64, 784, device=device)
targets = torch.randint(10, (64,), device=device)

for step in range(3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    print(
        f"step {step}: loss {loss.item():.3f}"
    )  # .item() waits for the GPU: not in every step of a real run

# %% [markdown]
# The GPU works through a queue of its own, and the host only fills it. Here is that training step, twice: once as
# above, with the loss printed in every step, once without.


# %%
def training(look_at_loss):
    def prepare():
        net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = (
            torch.randn(512, 784, device="cuda"),
            torch.zeros(512, dtype=torch.long, device="cuda"),
        )

        def one_step():
            sgd.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            sgd.step()
            if look_at_loss:
                loss.item()

        one_step()
        return lambda: [one_step() for _ in range(3)]

    return prepare


notebook.show(
    pictures.draw_timelines(
        {
            "loss.item() in every step": pictures.record_timeline(training(True)),
            "no look at the loss": pictures.record_timeline(training(False)),
        },
        "Who looks at the loss waits for the device, and the device for the next launch",
    ),
    "Timelines of three training steps. With loss.item() the host waits at the end of each step and the device has gaps; "
    "without it the host runs ahead.",
)

# %% [markdown]
# *Host and device during three small training steps.* Each look at the loss empties the queue, and the device idles
# until new launches arrive. Add up the loss on the device (`total += loss.detach()`) and look every hundred steps. Lab
# 1 is about this queue, and about measuring in spite of it.
#
# ## 2. Memory
#
# A training step holds more than the model:

# %%
moments = []


def note(name):
    figures = (
        torch.cuda.memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_allocated(),
    )
    moments.append((name, *figures))
    torch.cuda.reset_peak_memory_stats()


with course.times_only():
    torch.cuda.reset_peak_memory_stats()
    net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    adam = torch.optim.Adam(net.parameters())
    note("model")
    out = net(torch.randn(4096, 2048, device="cuda"))
    note("forward")
    out.square().mean().backward()
    note("backward")
    adam.step()
    note("step")
    adam.zero_grad()
    note("zero_grad")
    del net, adam, out
notebook.show(
    pictures.plot_moments(
        moments,
        "Forward keeps activations, backward trades them for gradients, Adam adds two copies",
    ),
    "Allocated, reserved and peak memory after each stage of a training step with Adam.",
)

# %% [markdown]
# *Memory after each stage, in MiB.* In float32 with Adam, count sixteen bytes per parameter (weight, gradient, two
# averages) and, on top, the activations, which grow with the batch. `torch.cuda.memory_summary()` prints all of it as a
# table.
#
# `torch.cuda.empty_cache()` is often recommended and rarely helps: it gives *reserved* memory back to the driver, for
# other programs. It cannot free what your own tensors hold. Before the next experiment, delete those (`del model,
# loss`), then empty the cache if another program needs the memory.
#
# What helps when a step does not fit, in the order of trying: a smaller batch with accumulation (below), mixed
# precision (below), and recomputing activations instead of keeping them, `torch.utils.checkpoint.checkpoint(block, x,
# use_reentrant=False)`. Lab 4 is about the last, about attention, and about finding what should not have been kept.
#
# ## 3. Feeding the GPU
#
# A GPU that waits for data is an expensive heater. Here is a data set whose samples take two milliseconds to decode,
# and a training step, with more and more help from the loader:

# %%
from torch.utils.data import DataLoader, Dataset


class SlowImages(Dataset):
    """128 samples; decoding one takes two milliseconds."""

    def __len__(self):
        return 128

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4096), index % 10


def samples_per_second(**options):
    if options.get("num_workers"):
        options["multiprocessing_context"] = "fork"
    loader = DataLoader(SlowImages(), batch_size=16, **options)
    net = nn.Sequential(nn.Linear(4096, 2048), nn.ReLU(), nn.Linear(2048, 10)).to(device)
    start = time.perf_counter()
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        nn.functional.cross_entropy(net(images), labels).backward()
    torch.cuda.synchronize()
    return 128 / (time.perf_counter() - start)


settings = {
    "in the training process": {},
    "1 worker": {"num_workers": 1},
    "2 workers, pinned memory": {"num_workers": 2, "pin_memory": True},
}
rates = {name: samples_per_second(**options) for name, options in settings.items()}
notebook.show(
    pictures.plot_bars(
        rates,
        "Workers load while the GPU computes",
        x_label="samples per second",
        form="{:.0f}",
    ),
    "Samples per second with the data loaded in the training process, by one worker and by two.",
)

# %% [markdown]
# *Samples per second.* One worker gains nothing here: decoding is the slow part in any process, and starting a process
# takes its time. The second worker halves what one batch costs. What the options do:
#
# | option | what it buys | what it costs |
# |---|---|---|
# | `num_workers=n` | `n` processes load ahead | memory; more than there are cores makes it slower |
# | `pin_memory=True` with `.to(device, non_blocking=True)` | the copy runs during the computation | host memory that
# cannot be swapped | | `persistent_workers=True` | workers survive the epoch | their memory stays taken | |
# `prefetch_factor=k` | `k` batches per worker in advance; evens out slow ones | memory |
#
# On the CPU side `torch.set_num_threads(n)` bounds the threads of one process: with several loaders and several ranks
# on a machine, each taking all cores is slower than each taking its share. Lab 5 finds the slow part of such a
# pipeline.
#
# ## 4. Larger batches than fit: accumulation
#
# Gradients add up over calls of `backward()` until somebody sets them to None. So four small batches make one large
# one, if the *loss* is divided rightly. Each cell of this table is the distance of the accumulated gradient from that
# of the whole batch, in float64:

# %%
from torch.nn.functional import mse_loss

features, labels = (
    torch.randn(26, 8).double().to(device),
    torch.randn(26, 1).double().to(device),
)
weight = torch.zeros(8, 1, dtype=torch.float64, device=device, requires_grad=True)
(whole,) = torch.autograd.grad(mse_loss(features @ weight, labels), weight)


def distance(divide):
    weight.grad = None
    for x, y in zip(features.split(8), labels.split(8), strict=True):
        divide(mse_loss(x @ weight, y), len(x)).backward()
    return f"{(weight.grad - whole).abs().max().item():.1e}"


notebook.table(
    ("26 samples in batches of 8, 8, 8 and 2", "distance from the whole batch"),
    [
        ("not divided", distance(lambda loss, size: loss)),
        ("divided by the number of batches", distance(lambda loss, size: loss / 4)),
        (
            "weighted by the size of the batch",
            distance(lambda loss, size: loss * size / 26),
        ),
    ],
)

# %% [markdown]
# The middle line is in many tutorials, and right only if all batches are equally long. The last batch of an epoch is
# not, and neither are sentences with different numbers of tokens. It is wrong twice over when an epoch ends in the
# middle of a window: then too few batches have been added, and are divided by the full number. Lab 3 does it rightly,
# on several GPUs at once.
#
# ## 5. Several GPUs: DataParallel and DistributedDataParallel
#
# | | `nn.DataParallel` | `DistributedDataParallel` |
# |---|---|---|
# | processes | one, with a thread per GPU | one per GPU |
# | weights | copied to all GPUs in every step | stay on each GPU |
# | gradients | collected on GPU 0, which alone updates | averaged by all-reduce, while backward still runs |
# | memory | GPU 0 holds more than the others | the same everywhere |
# | several machines | no | yes |
# | advice | do not use it for new programs | use it, from two GPUs on |
#
# The first one costs one line, and often more time than it saves. The same step on one and on two virtual GPUs:


# %%
def step_seconds(gpus):
    import vgpu

    with vgpu.attach("T4", gpus=gpus, values=False, force=True):
        net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6))).cuda()
        wrapped = nn.DataParallel(net) if gpus > 1 else net
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(512, 2048, device="cuda")
        for step in range(4):
            if step == 1:
                torch.cuda.synchronize()
                start = time.perf_counter()
            sgd.zero_grad()
            wrapped(x).square().mean().backward()
            sgd.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / 3


one_gpu, two_gpus = step_seconds(1), step_seconds(2)
notebook.table(
    ("DataParallel, simulated", "ms per step", "speedup"),
    [
        ("one T4", round(one_gpu * 1e3, 2), 1.0),
        ("two T4", round(two_gpus * 1e3, 2), round(one_gpu / two_gpus, 2)),
    ],
)

# %% [markdown]
# `DistributedDataParallel` wants one process per GPU, so it cannot run in the cells of a notebook. `torchrun` starts
# the processes and passes each its number. On the virtual GPU `python -m vgpu --gpus 2` goes before it:

# %%
import sys

python, root = sys.executable, course.root
example = root / "examples" / "ddp_torchrun.py"
launch = (
    "-m vgpu --gpus 2 torchrun --nproc-per-node 2"
    if course.simulated
    else "-m torch.distributed.run --nproc-per-node gpu"
)
snapshot = course.folder / "snapshot.pt"
# !cd {root} && {python} {launch} --standalone {example} --epochs 3 --snapshot {snapshot} 2>&1 | grep epoch

# %% [markdown]
# What a program needs for it, and what is forgotten most often (`examples/ddp_torchrun.py` has it all in place):
#
# 1. `init_process_group`, with "nccl" on GPUs and "gloo" elsewhere; `destroy_process_group` at the end, also after an
# error. 2. `torch.cuda.set_device(LOCAL_RANK)`: `RANK` counts over all machines, `LOCAL_RANK` on this one. 3.
# `DistributedSampler`, so that the ranks see different samples, and `sampler.set_epoch(epoch)`, so that they see other
#    ones in the next epoch. Without the second every epoch has the same order.
# 4. One rank writes files; all ranks wait where they need the file.
# 5. The state of `ddp.module`, not of `ddp`, goes into the file: then it can be loaded without DDP.
#
# The launcher is `torchrun`; the older `python -m torch.distributed.launch` is deprecated. Fixed ports
# (`MASTER_PORT=12355`) collide as soon as two people use one machine: `--standalone` picks a free one.
#
# ## 6. Mixed precision
#
# GPUs multiply 16-bit numbers several times as fast as 32-bit ones. Autocast runs products in 16 bits and leaves what
# needs more in 32; the weights stay in float32. Float16 has few exponents, so small gradients vanish; a `GradScaler`
# scales the loss, and thereby all gradients, out of the way.

# %%
from labkit.models import mlp


def amp_step(dtype):
    net = mlp(1024, (4096, 4096), 10).cuda()
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    x, y = (
        torch.randn(1024, 1024, device="cuda"),
        torch.zeros(1024, dtype=torch.long, device="cuda"),
    )
    for step in range(4):
        if step == 1:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
        sgd.zero_grad()
        with torch.amp.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
        scaler.scale(loss).backward()
        scaler.step(sgd)
        scaler.update()
    torch.cuda.synchronize()
    return (
        time.perf_counter() - start
    ) / 3 * 1e3, torch.cuda.max_memory_allocated() / 2**20


rows = []
for dtype in (torch.float32, torch.float16):
    with course.times_only():
        milliseconds, mebibytes = amp_step(dtype)
    rows.append(
        (str(dtype).removeprefix("torch."), round(milliseconds, 2), round(mebibytes))
    )
notebook.table(("precision of the products", "ms per step", "peak memory, MiB"), rows)

# %% [markdown]
# How much it brings depends on the model: large products gain most, small layers wait for launches in any precision,
# and weights, gradients and optimizer state do not shrink at all. "Twice as fast with half the memory" is a hope, not a
# rule.
#
# The names have changed: `torch.amp.autocast("cuda")` and `torch.amp.GradScaler("cuda")` replace those of
# `torch.cuda.amp`. Gradients must be unscaled before they are clipped. Bfloat16, on GPUs from the A100 on, needs no
# scaler. Lab 2 is about all of this.
#
# ## 7. Profiling: where the time goes

# %%
from torch.profiler import ProfilerActivity, profile, record_function

with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
    for _ in range(3):
        with record_function("forward"):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
entries = sorted(
    prof.key_averages(), key=lambda entry: entry.self_device_time_total, reverse=True
)
operations = [entry for entry in entries if entry.key.startswith("aten::")][:6]
notebook.table(
    ("operation", "calls", "host, µs", "device, µs"),
    [
        (e.key, e.count, round(e.self_cpu_time_total), round(e.self_device_time_total))
        for e in operations
    ],
    title="Three training steps of the small model from section 1",
)
prof.export_chrome_trace(str(course.folder / "trace.json"))  # for ui.perfetto.dev

# %% [markdown]
# Read it in this order. Is the device busy at all, or does it wait for the loader or for launches? If it is busy, with
# what? Only then think about a single operation. `record_function` gives parts of the program a name in the trace; a
# profiler costs time, so measure the speed without it. Labs 1 and 5 use it.
#
# ## 8. Benchmarking
#
# A benchmark of a GPU that skips one of these measures something else:
#
# 1. **Warm up.** The first steps load libraries, choose kernels and grow the cache.
# 2. **Wait before both readings of the clock**, or use `torch.cuda.Event`, which is recorded in the queue itself.
# 3. **Time what you mean**: no random numbers, transfers or prints inside.
# 4. **Repeat, and take the median.**
# 5. **Change one thing at a time**, and say on which device, in which precision and with which batch.

# %%
start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
x = torch.randn(512, 512, device=device)
for _ in range(3):
    x @ x
times = []
for _ in range(9):
    start_event.record()
    x @ x
    end_event.record()
    end_event.synchronize()
    times.append(start_event.elapsed_time(end_event))
print(f"median of 9: {sorted(times)[4] * 1e3:.1f} µs per product")

# %% [markdown]
# `torch.utils.benchmark.Timer` does points 1, 2 and 4 by itself.
#
# `torch.backends.cudnn.benchmark = True` lets cuDNN try several algorithms for each new shape and keep the fastest. It
# pays for convolutions whose shapes stay the same, costs time whenever a new shape comes along, and makes runs less
# repeatable.
#
# ## 9. Several machines
#
# The program of section 5 runs on several machines as it is; only the launch differs. One machine is the meeting point,
# and each runs the same line:
#
#     torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 --rdzv-id RUN train.py
#
# On a cluster with Slurm, `srun` starts that line once per machine. A batch script that works asks for one *task* per
# machine and lets torchrun start the ranks:
#
#     #SBATCH --nodes=2
#     #SBATCH --ntasks-per-node=1
#     #SBATCH --gpus-per-node=4
#     srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 4 --rdzv-backend c10d \
#         --rdzv-endpoint $(scontrol show hostnames | head -n 1):29400 --rdzv-id $SLURM_JOB_ID train.py
#
# A notebook cannot show two machines. It can show what changes, the link between the GPUs. An all-reduce of 100 MiB
# of gradients over eight GPUs, by the ring's formula that the virtual GPU uses:

# %%
import vgpu

seconds = {
    name: vgpu.device.cost.collective_seconds(
        vgpu.get_interconnect(name, vgpu.get_spec("T4")), "all_reduce", 100 * 2**20, 8
    )
    for name in vgpu.list_interconnects()
}
notebook.show(
    pictures.plot_bars(
        {
            name: value * 1e3
            for name, value in sorted(seconds.items(), key=lambda item: item[1])
        },
        "The link decides: all-reduce of 100 MiB over eight GPUs",
        x_label="milliseconds (modelled)",
    ),
    "Milliseconds of an all-reduce of 100 MiB over eight GPUs for each interconnect that the virtual GPU knows.",
)

# %% [markdown]
# *Time of one all-reduce.* Compare with the time of your backward pass: what is shorter hides behind it, what is longer
# is waited for. Then larger batches per GPU, accumulation (one exchange per several batches) or compressed gradients
# help; a faster GPU makes it worse. Lab 3 measures exactly this. Before a long run on a new cluster, time one
# all-reduce on each pair of machines: that finds the one that slows down all others.
#
# ## What to remember
#
# - The GPU works through a queue. Wait only when you must, and always before you read a clock.
# - Allocated, reserved and peak are three different figures.
# - Keep the GPU fed: workers, pinned memory, copies that do not block.
# - DistributedDataParallel, not DataParallel; `torchrun`, not fixed ports.
# - Accumulate by the number of samples, not of batches.
# - Autocast for products, float32 for weights; scale only float16.
# - Profile before you change anything, and measure after.
#
# Go on with [Lab 1](lab1.ipynb).
