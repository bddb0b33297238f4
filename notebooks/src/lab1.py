# %% [markdown]
# # Lab 1: GPU basics
#
# A GPU is not simply a faster CPU. It answers late, it has its own memory, and for small work it is slower. If you
# know these three things, you can read every number of this course. If not, you measure something else than you
# think.
#
# The experiments run as they are. Cells below **Your part** call the functions that you write in
# `labs/lab1_gpu_basics/`; while one is open, its cell says so and the notebook goes on. The tasks themselves, and what
# each point is paid for, are in the README of the lab.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example: get the course
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open(lab=1)
lab = course.modules  # your own labs/lab1_gpu_basics: edits are picked up without a restart

# %% [markdown]
# The line above says what your times are. On the virtual GPU PyTorch behaves as on an NVIDIA GPU; numbers are really
# computed, by your CPU, and times and bytes come from a model of the GPU. The clock of a cell shows the
# model's time, too.
#
# ## 1. What is here (Task 1.1)
#
# Every later number depends on the machine, so the first task describes it. **Your part**: expect the same name as in
# the line above. If a machine lacks something, its field must be `None`, not an error.

# %%
environment = lab.environment.check_environment()
notebook.table(
    ("what", "found"), [(key, str(value)) for key, value in vars(environment).items()]
)

# %% [markdown]
# Three versions are easily mixed up. PyTorch's `cuda` is what it was *built* for, and it brings along what it needs.
# The driver belongs to the machine, and must be new enough for it. The toolkit with `nvcc` is a third thing, needed
# only by those who compile CUDA code.
#
# ## 2. A GPU answers late
#
# `a @ b` on a GPU does not multiply. It puts the product into a queue and returns; the GPU works through the queue on
# its own. Look at the clock right after the call, and once more when the queue is empty:

# %%
import time

import torch

a = torch.randn(1024, 1024, device=course.device)
a @ a  # the first product is special; section 3
torch.cuda.synchronize()

start = time.perf_counter()
c = a @ a
launch = time.perf_counter() - start
torch.cuda.synchronize()
done = time.perf_counter() - start
flops = 2 * 1024**3
notebook.table(
    ("clock read", "microseconds", "TFLOPS that it seems to reach"),
    [
        ("right after the call", round(launch * 1e6, 1), round(flops / launch / 1e12, 1)),
        ("when the queue is empty", round(done * 1e6, 1), round(flops / done / 1e12, 1)),
    ],
)

# %% [markdown]
# The first line is no measurement of a product. It is how long it takes to *ask* for one, and the same for every size.
# Hundreds of TFLOPS on a GPU with a peak of eight are the usual sign.
#
# A drawing shows what happens in between. Six products, timed wrongly and rightly:

# %%
from labkit.notebook import pictures_basics as pictures


def six_products(wait_each_time):
    def prepare():
        x = torch.randn(384, 384, device="cuda")
        x @ x

        def work():
            for _ in range(6):
                x @ x
                if wait_each_time:
                    torch.cuda.synchronize()

        return work

    return prepare


queued = pictures.record_timeline(six_products(wait_each_time=False))
waited = pictures.record_timeline(six_products(wait_each_time=True))
last_launch = max(span.end for span in queued if span.kind == "launch")
everything = max(span.end for span in waited)
notebook.show(
    pictures.draw_timelines(
        {"without waiting": queued, "waiting after each product": waited},
        "The host is done long before the device",
        marks={"without waiting": last_launch, "waiting after each product": everything},
    ),
    "Two timelines of host and device. Without waiting the host launches six products and reads its clock while "
    "the device works on the first. Waiting after each, host and device take turns.",
)

# %% [markdown]
# *Launches of the host above, products of the device below.* Without waiting the host reads its clock (the vertical
# line) after a few microseconds, while five products are still in the queue. With waiting after each product the time
# is right, but there are gaps on the device: while the host wakes up and launches the next product, nothing runs. So
# wait before the clock is started and before it is stopped, and let the queue be full in between.
#
# The host waits whenever it needs a value: `.item()`, `print(tensor)`, `.cpu()`, `if loss > 3`. Each of these empties
# the queue, and a training loop that prints its loss in every step pays for it.
#
# ## 3. The first time is slow
#
# Six times the same product, in a GPU that has just been started:

# %%
with course.times_only():
    x = torch.randn(512, 512, device="cuda")
    torch.cuda.synchronize()
    times = []
    for _ in range(6):
        start = time.perf_counter()
        x @ x
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
notebook.table(
    ("product", "milliseconds"),
    [(index, round(value, 3)) for index, value in enumerate(times, start=1)],
)

# %% [markdown]
# Loading a library, choosing a kernel, taking memory from the driver: all this is paid once, and a mean over ten
# products would mostly show it. Hence a *warm-up*. And because something else can always come between, a *median*
# over several measurements, not a mean: one bad value among five moves a mean as far as it likes, and a median not at
# all.
#
# ## 4. What limits an operation
#
# Adding 1 to a vector is hardly any arithmetic: read each number, write each number. Time it for vectors of one
# kilobyte to one gigabyte:

# %%
with course.times_only():
    points = []
    for exponent in range(8, 29, 2):
        vector = torch.zeros(2**exponent, device="cuda")
        for _ in range(3):
            vector.add_(1)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            vector.add_(1)
        torch.cuda.synchronize()
        points.append((4 * 2**exponent / 2**20, (time.perf_counter() - start) / 20 * 1e6))
        del vector
notebook.show(
    pictures.plot_over_size(
        {"x.add_(1)": points},
        "Small vectors cost the launch, large ones the memory traffic",
        x_label="size of the vector",
        y_label="time per addition, µs",
        ticks={
            2**-10: "1 KiB",
            2**-5: "32 KiB",
            1: "1 MiB",
            2**5: "32 MiB",
            2**10: "1 GiB",
        },
    ),
    "Time of an addition over the size of the vector, both logarithmic: flat up to one MiB, then a straight slope.",
)
size, microseconds = points[-1]
print(f"slope: {2 * size * 2**20 / (microseconds * 1e-6) / 1e9:.0f} GB/s read and written")

# %% [markdown]
# *Time of one addition over the size of the vector.* On the left the line is flat: the host needs a few microseconds to
# launch a kernel, however little there is to do. On the right it is a slope, and the slope is the bandwidth of the
# memory. There is a third limit that an addition never meets: the peak of the arithmetic units. A product of large
# matrices does, because each number that is read is used many times.
#
# These three, *launch, memory, compute*, are the roofline model, and most of the advice on making programs faster is
# one of them in disguise: fuse small kernels (launch), use fewer bytes (memory), use a faster type (compute).
#
# One more road is narrow, that between the host and the device:

# %%
with course.times_only():
    rows = []
    for name, source in (
        ("pageable", torch.zeros(2**25)),
        ("pinned", torch.zeros(2**25).pin_memory()),
    ):
        target = torch.empty(2**25, device="cuda")
        target.copy_(source)
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        rows.append((name, round(4 * 2**25 / (time.perf_counter() - start) / 1e9, 1)))
notebook.table(("host memory", "GB/s to the device"), rows)

# %% [markdown]
# Compare with the slope above. A batch that crosses this road for one small operation is not worth it; that is why data
# go to the GPU once, and why the timed part of a benchmark must not contain `.cuda()`.
#
# ## 5. Your part: products on CPU and GPU (Task 1.2)
#
# First one size. Expect about the second line of the table in section 2, *when the queue is empty*, and fewer TFLOPS
# than the data sheet's peak. A time near the first line means that the clock was stopped too early.

# %%
peaks = course.hardware.peaks
product = lab.benchmark.benchmark_matmul("cuda", 1024, 20)
promised = f" of {peaks.tflops['float32']:g} promised" if peaks else ""
print(f"{product.seconds * 1e6:.0f} µs per product, {product.tflops:.2f} TFLOPS{promised}")

# %% [markdown]
# Now all sizes, on both sides. Before you run it: at which size will the GPU begin to pay?

# %%
SIZES = (128, 512, 1024, 2048, 4096)
with course.times_only():
    comparisons = lab.benchmark.compare_cpu_gpu(SIZES, "cuda", 20)
crossover = lab.benchmark.find_crossover(comparisons)
notebook.show(
    pictures.plot_over_size(
        {
            "CPU": [(each.size, each.cpu.seconds * 1e3) for each in comparisons],
            "GPU": [(each.size, each.gpu.seconds * 1e3) for each in comparisons],
        },
        "Time of one product, as your benchmark measured it",
        x_label="rows and columns",
        y_label="time per product, ms",
        ticks={size: str(size) for size in SIZES},
    ),
    "Your times of a product on CPU and GPU over the size of the matrices.",
)
print(
    "the GPU never pays" if crossover is None else f"the GPU pays from size {crossover} on"
)

# %% [markdown]
# *Your times of one product.* Expect the line of the CPU to be straight, eight times as long for twice the size, and
# that of the GPU to be flatter on the left, where the launch or the memory is what it waits for. At 128 the lines are
# close. There it matters how you time: a product that is waited for singly bears its own launch and wait, products in a
# block share them. Both are right, and the crossover may differ. Does `classify_bound` say the same about what limits a
# product, from the data sheet alone?

# %%
if peaks is None:
    notebook.card(
        "The data sheet of this GPU is not known here: look up its three figures and pass them yourself."
    )
else:
    rows = []
    for size in (64, 128, 256, 512, 1024, 4096):
        bound = lab.benchmark.classify_bound(
            size,
            peak_tflops=peaks.tflops["float32"],
            bandwidth_bytes_per_second=peaks.bandwidth_bytes_per_second,
            launch_seconds=peaks.launch_seconds,
        )
        rows.append((size, bound))
    notebook.table(("size", "bound by"), rows)

# %% [markdown]
# And your own plot, which goes to `results/` when you run the program:

# %%
with course.times_only():
    picture = lab.benchmark.plot_speedup(comparisons, course.folder / "speedup.png")
notebook.show_file(
    picture,
    "Your plot: speedup of the GPU over the size of the matrices, with a line at 1.",
)

# %% [markdown]
# ## 6. Memory has three figures
#
# - **allocated**: what your tensors hold now;
# - **reserved**: what PyTorch has taken from the driver. It keeps what is freed, because asking the driver is slow;
# - **peak**: the most that was allocated since the peak was last reset. It decides whether a program fits.
#
# Five moments in the life of two tensors, the peak being reset after each:

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
    note("nothing yet")
    x = torch.zeros(64 * 2**20 // 4, device="cuda")
    note("x: 64 MiB")
    y = (x * 2 + 1).sqrt()
    note("y from x")
    del x
    note("x deleted")
    torch.cuda.empty_cache()
    note("cache emptied")
notebook.show(
    pictures.plot_moments(
        moments, "One line of arithmetic needs more than its inputs and its result"
    ),
    "Allocated, reserved and peak memory at five moments. Computing y has a peak above what is allocated afterwards; "
    "reserved stays high after x is deleted until the cache is emptied.",
)

# %% [markdown]
# *Memory at five moments, in MiB.* `(x * 2 + 1).sqrt()` makes a tensor for each step and frees it as soon as the next
# one is there: that is the pale part of moment 3, gone before anybody looks. At moment 4 the bytes of `x` are free
# for PyTorch and taken for everybody else: other programs, and `nvidia-smi`, see *reserved*.
#
# ### Your part: one training step (Task 1.3)
#
# A step has the same three figures at each of its stages. Before you look: which stage will have the highest peak? Adam
# keeps two averages per parameter; when are they made?

# %%
single, half = lab.memory_profiling.compare_precisions(device="cuda")
for profile in (single, half):
    stages = [
        (s.stage, s.allocated_bytes, s.reserved_bytes, s.peak_bytes) for s in profile.stages
    ]
    title = f"One training step in {profile.dtype}, as you measured it"
    notebook.show(
        pictures.plot_moments(stages, title),
        f"Allocated, reserved and peak memory of your training step in {profile.dtype}, stage by stage.",
    )

# %% [markdown]
# *Your step, stage by stage.* Expect *model* to be four bytes per parameter in float32, and *step* to add about twice
# as much. *backward* adds as many bytes as *model* for the gradients and frees the saved activations, so that what it
# adds on balance is less. If no stage has a lower peak than the one before, the peak was never reset. In this notebook
# *baseline* is not zero: the tensors `a` and `c` of section 2 are still there.

# %%
increases = lab.memory_profiling.stage_increases(single)
rows = [(stage, round(added / 2**20, 2)) for stage, added in increases.items()]
notebook.table(("stage", "added, MiB"), rows, title="What each stage added, in float32")
print("the step fits if this stage does:", lab.memory_profiling.find_bottleneck(single))

# %% [markdown]
# Half precision halves what belongs to the model. That counts bytes and no more: a model that is cast as a whole
# does not train well. Why not is the first question of Lab 2.
#
# ## 7. Where the time goes (Task 1.4)
#
# A stopwatch around a step says how long it takes. A profiler says which operations take it. **Your part**, on the
# training step of Task 1.3:

# %%
step = lab.profiler.make_training_step("cuda")
operations = lab.profiler.profile_operations(step, device="cuda", steps=3)
worst = lab.profiler.slowest(operations, 7)
notebook.show(
    pictures.plot_bars(
        {each.name: each.device_seconds * 1e3 for each in worst},
        "Operations of three training steps, the slowest first",
        x_label="time on the device, ms",
    ),
    "Your profile: the operations with the most time on the device.",
)
notebook.table(
    ("operation", "calls", "host, ms", "device, ms"),
    [
        (o.name, o.calls, round(o.cpu_seconds * 1e3, 3), round(o.device_seconds * 1e3, 3))
        for o in worst
    ],
)

# %% [markdown]
# *Your profile.* Is the first bar where you would have looked? Compare the two columns of times: where the host's is
# the larger one, the device waits for launches, and a faster GPU would not help.
#
# ## 8. If you like to work here
#
# You may write a function in a cell instead of in the file. Begin the cell with a line that names the file, save the
# notebook, and run `.venv/bin/gpulabs notebook export notebooks/lab1.ipynb` in a terminal, in the folder of the course:
# each function of such cells takes the place of the one of the same name in your module, with the docstring kept. The
# next cell that uses `lab` sees it. If you have changed the file in the meantime, it shows the change and asks first.
#
# To begin, remove the first `# ` of each line below. The line with `export` has to stay the first one, and as it is.

# %%
# # export: lab1_gpu_basics/benchmark.py
# def find_crossover(comparisons):
#     ...

# %% [markdown]
# ## 9. Your grade
#
# The checks of your instructor, with fresh inputs each time. An open task costs only its own points, so do not wait.
# What is left after this notebook: the four programs, which write your `results/`, and the report (Task 1.5), whose
# numbers must be those.
#
# While you work, a cell with `%grade lab1.benchmark` asks one criterion, again only what your last edit can have
# changed.

# %%
course.grade()
