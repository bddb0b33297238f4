# %% [markdown]
# # Sharding
#
# With DistributedDataParallel each rank holds all parameters, all gradients, all optimizer states. This notebook looks
# at what is left on a rank when they are shared out, at what goes around instead, and at when. The exercise's tasks are
# in `labs/sharding_exercise/`.
#
# A notebook is one process. `ranks.run(function, world_size, ...)` calls a function in several, each with a virtual GPU
# of its own, as in Lab 3's notebook; your own files are imported again each time.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open(lab="sharding")
lab = (
    course.modules
)  # your own labs/sharding_exercise: edits are picked up without a restart

# %% [markdown]
# ## 1. Where the bytes are (Task 7.4)
#
# Your `memory_per_rank` for the model of the ZeRO paper, 7.5 billion parameters. What is shared out first is what there
# is most of.

# %%
sizes = [2**power for power in range(11)]
figure, (axes,) = notebook.new_figure(
    "7.5 billion parameters, Adam in mixed precision",
    x_label="ranks",
    y_label="GB per rank",
)
for stage in range(4):
    held = [
        lab.analysis.memory_per_rank(7_500_000_000, size, stage).total_bytes / 1e9
        for size in sizes
    ]
    axes.loglog(sizes, held, "o-", color=notebook.COLORS[stage], label=f"stage {stage}")
axes.axhline(80, color=notebook.INK, linestyle=":")
axes.legend()
notebook.show(
    figure,
    "Four curves that begin at 120 GB: stage 0 stays there, stages 1 and 2 level off at "
    "30 and 15, stage 3 falls for ever. The dotted line is a GPU of 80 GB.",
)

# %% [markdown]
# **Try it.** From how many ranks on does stage 2 bring nothing more? What is left there, and who needs it?
#
# ## 2. An owner for each parameter (Task 7.1)
#
# AdamW holds two numbers for each parameter. Six parameters of different sizes, your `ShardedOptimizer`, and what each
# rank holds after a step:

# %%
from labkit.notebook import ranks, sharding_demos

rows = (300, 20, 250, 10, 200, 30)
optimizer = lab.zero.ShardedOptimizer
figure, (axes,) = notebook.new_figure(
    f"States of parameters of {', '.join(map(str, rows))} rows",
    x_label="rank",
    y_label="MB of optimizer states",
)
for number, size in enumerate((1, 2, 3)):
    state_bytes = ranks.run(
        sharding_demos.state_bytes,
        size,
        machine="vgpu:T4",
        values=False,
        module=optimizer.__module__,
        rows=rows,
    )
    axes.bar(
        [rank + 0.27 * (number - 1) for rank in range(size)],
        [held / 1e6 for held in state_bytes],
        width=0.25,
        color=notebook.COLORS[number],
        label=f"{size} rank{'s' * (size > 1)}",
    )
axes.set_xticks(range(3))
axes.legend()
notebook.show(
    figure,
    "Bars of nearly the same height for two ranks and for three: half, and a third, "
    "of the one for a single rank.",
)

# %% [markdown]
# **Try it.** Give it one parameter of 800 rows and five of 2. What could no owner of whole parameters do about it?
#
# ## 3. Gathered in turn (Task 7.2)
#
# A step of a transformer of six blocks on two ranks under your `shard`: what the GPU computes, and when parameters are
# gathered and gradients reduced. Above, each block is gathered when it is needed; below, two blocks ahead, and kept
# until its backward is done.


# %%
def draw_step(axes, record, title):
    begin = min(event.start for event in record)
    for event in record:
        message = sharding_demos.is_message(event)
        row = 0 if not message else 1 if "AllGather" in event.name else 2
        axes.barh(
            row,
            (event.end - event.start) * 1e3,
            left=(event.start - begin) * 1e3,
            color=notebook.COLORS[row],
        )
    axes.set_yticks(range(3), ["computes", "gathers", "reduces"])
    axes.set_title(title)


shard = lab.fsdp.shard
ways = {
    "as needed": {},
    "two ahead, kept": {"prefetch": 2, "reshard_after_forward": False},
}
steps = {
    title: ranks.run(
        sharding_demos.fsdp_step,
        2,
        machine="vgpu:T4",
        values=False,
        module=shard.__module__,
        width=512,
        layers=6,
        options=options,
    )[0]
    for title, options in ways.items()
}
for title, record in steps.items():
    figure, (axes,) = notebook.new_figure(
        "A step on rank 0", x_label="milliseconds", y_label=""
    )
    draw_step(axes, record, title)
    notebook.show(
        figure,
        "Three rows of bars over the time of a step: computing, gathering parameters, "
        "reducing gradients.",
    )

# %% [markdown]
# How much of the communication found work to hide behind? Your `hidden_share`:

# %%
rows = []
for title, record in steps.items():
    messages = [
        (event.start, event.end) for event in record if sharding_demos.is_message(event)
    ]
    work = [
        (event.start, event.end) for event in record if not sharding_demos.is_message(event)
    ]
    message_bytes = sum(event.bytes for event in record if sharding_demos.is_message(event))
    rows.append(
        (
            title,
            f"{message_bytes / 1e6:.0f}",
            f"{lab.analysis.hidden_share(messages, work):.0%}",
        )
    )
notebook.table(("blocks are gathered", "MB that go around", "hidden"), rows)

# %% [markdown]
# ## 4. One layer on several ranks (Task 7.3)
#
# Your `ParallelMLP` against the whole layers, and its messages: as large as the output, and as the input's gradient,
# however many hidden features there are.

# %%
layer = lab.tensor_parallel.ParallelMLP
rows = []
for size, hidden in ((2, 64), (2, 256), (4, 256)):
    difference, forward, backward = ranks.run(
        sharding_demos.parallel_layer,
        size,
        machine="vgpu:T4",
        module=layer.__module__,
        hidden=hidden,
    )[0]
    rows.append((size, hidden, f"{difference:.1e}", forward, backward))
notebook.table(
    ("ranks", "hidden features", "largest difference", "bytes forward", "bytes backward"),
    rows,
)

# %% [markdown]
# **Try it.** How wide must a layer be before its products take longer than its messages on a T4's PCIe? On NVLink?
#
# ## 5. Results, report, grade
#
# `python -m labs.sharding_exercise.analysis` trains one transformer in three ways, and writes what the report is
# compared with. Then fill in `labs/sharding_exercise/REPORT.md`. The last cell grades this exercise.

# %%
course.grade()
