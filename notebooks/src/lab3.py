# %% [markdown]
# # Lab 3: distributed data parallel
#
# One GPU is too slow, so you take four. Each gets a copy of the model and a quarter of the data, and after every step
# all copies are made equal again. If it is done right, the weights do not show how many there were. If it is
# done wrong, the loss often does not show it either: it goes down all the same. This notebook shows what the copies say
# to each other, what that costs, and how you notice mistakes that no loss curve shows.
#
# Cells that say **your part** call what you write in `labs/lab3_distributed/`; while a task is open, its cell says so
# and the notebook goes on. The README of the lab has the tasks and what each point is paid for.

# %%
import importlib.util

if importlib.util.find_spec("labkit") is None:  # on Colab, for example
    REPOSITORY = "https://github.com/YOUR-COURSE/gpu-computing-labs"
    # !git clone --quiet {REPOSITORY} course
    # %cd course
    # %pip install --quiet --editable .

from labkit import notebook

course = notebook.open(lab=3)
lab = course.modules

# %%
import torch
from torch import nn

from labkit import models
from labkit.notebook import pictures_scaling as pictures
from labkit.notebook import rank_demos, ranks

torch.set_num_threads(1)  # for tensors as small as these, threads cost more than they bring

# %% [markdown]
# ## 1. What runs where
#
# A *rank* is one process of a job, numbered from 0; the *world size* is how many there are. A *collective* is an
# appointment of all ranks: an *all-reduce* leaves the sum (or mean) of everybody's tensor with everybody, a
# *broadcast* hands out one rank's. Every rank must come to each of them, in the same order. One that does not come
# makes the others wait.
#
# A notebook is *one* process, so it cannot be four ranks. Below, `ranks.run(function, world_size, ...)` calls
# `function(rank, world_size, init_method, ...)` in as many new processes, each with its own GPU, and returns what
# they returned. That is what `ranks.py` of the lab does for programs, and what torchrun does from a terminal:
#
#     python -m labs.lab3_distributed.ddp_training --world-size 2
#     torchrun --standalone --nproc-per-node 2 -m labs.lab3_distributed.ddp_training --device cpu
#
# Pictures of what a GPU did at which moment always come from *virtual* GPUs, because those record it. The numbers they
# compute and exchange are real, their times are simulated.
#
# ## 2. Why replicas must talk
#
# The simplest job of two ranks needs no processes at all: two copies of a model, each trained on its own half of the
# data. Once they never talk; once each step uses the mean of both gradients. That mean is all that data parallelism
# is.

# %%
from labkit import data

images, labels = data.load("digits").tensors


def two_replicas(share_gradients, steps=40):
    """Train two copies on different halves; returns rank 0's loss and the distance of the copies, step by step."""
    copies = []
    for _ in range(2):
        torch.manual_seed(0)
        copies.append(models.mlp(hidden=(32,)))
    losses, distances = [], []
    for step in range(steps):
        for rank, copy in enumerate(copies):
            mine = slice(rank + 2 * 16 * step % 1280, rank + 2 * 16 * step % 1280 + 32, 2)
            copy.zero_grad()
            loss = nn.functional.cross_entropy(copy(images[mine]), labels[mine])
            loss.backward()
            if rank == 0:
                losses.append(loss.item())
        pairs = list(zip(copies[0].parameters(), copies[1].parameters(), strict=True))
        with torch.no_grad():
            for first, second in pairs:
                mean = (first.grad + second.grad) / 2
                first -= 0.2 * (mean if share_gradients else first.grad)
                second -= 0.2 * (mean if share_gradients else second.grad)
            distances.append(
                sum(float((first - second).square().sum()) for first, second in pairs)
                ** 0.5
            )
    return losses, distances


apart, together = two_replicas(share_gradients=False), two_replicas(share_gradients=True)
notebook.show(
    pictures.draw_drift(
        {"each for itself": apart[0], "mean gradient": together[0]},
        {"each for itself": apart[1], "mean gradient": together[1]},
    ),
    "Left: the loss of rank 0 falls alike whether the replicas share gradients or "
    "not. Right: without sharing the distance between the replicas grows with every "
    "step, with sharing it stays 0.",
    is_simulated=False,
)

# %% [markdown]
# *Left the loss, right the distance of the two copies.* Both losses go down. Only the right picture shows that
# without exchange you train two models, each on half of the data, and throw one away. So compare replicas, not
# losses: that is what the checks of this lab do.
#
# Two conditions for the blue line: the copies begin equal (DistributedDataParallel broadcasts the parameters of rank
# 0 when it wraps a model), and every backward pass goes through the wrapper (`model.module(inputs)` goes around it).
#
# ## 3. Who gets which samples
#
# Each rank needs its own share of the data, all shares equally long, so that all ranks come to the same number of
# appointments. Ten samples and four ranks do not go evenly:

# %%
from torch.utils.data import DistributedSampler

samples = list(range(10))
notebook.table(
    ("rank", "its samples"),
    [
        (
            rank,
            str(
                list(DistributedSampler(samples, num_replicas=4, rank=rank, shuffle=False))
            ),
        )
        for rank in range(4)
    ],
)

# %% [markdown]
# Twelve places for ten samples: two are handed out twice. In training that does no harm. In an *evaluation* it does:
# two images count twice, and the accuracy is that of another test set. And with shuffling, the order depends on a
# seed and the number of the epoch. Pass that number to the sampler, or else every epoch has the same one.
#
# ### Your part: train on several ranks (Task 3.1)
#
# Your `train`, on 1, 2 and 4 ranks, with all the data in one batch per step. Then shuffling makes no difference, and
# the weights must be the same however many ranks there are. Expect three curves on top of each other. (With 4 ranks
# two of the 1438 samples are drawn twice, which shows in the fourth digit.) A rank that trains for itself, a sum in
# the place of a mean, or a loss that is not that of all ranks pulls them apart.

# %%
trainings, rows = {}, []
for world_size in (1, 2, 4):
    torch.manual_seed(0)
    trainings[world_size] = ranks.run(
        lab.ddp_training.train,
        world_size,
        device=course.device.type,
        model=models.mlp(hidden=(32,)),
        dataset=data.load("digits"),
        test_dataset=data.load("digits", split="test"),
        epochs=8,
        batch_size=-(-1438 // world_size),
        learning_rate=0.3,
    )[0]
    training = trainings[world_size]
    rows.append(
        (
            world_size,
            training.backend,
            training.effective_batch_size,
            training.optimizer_steps,
            f"{training.losses[-1]:.4f}",
            f"{training.accuracy:.1%}",
        )
    )
notebook.show(
    pictures.draw_runs(
        {
            f"{size} ranks" if size > 1 else "1 rank": (1, training.losses)
            for size, training in trainings.items()
        },
        "The weights do not show how many there were",
    ),
    "Mean loss over eight epochs on 1, 2 and 4 ranks: the three curves coincide.",
)
notebook.table(
    ("ranks", "backend", "batch of all ranks", "steps", "last loss", "accuracy"), rows
)

# %% [markdown]
# ## 4. What the exchange costs, and how it hides
#
# In every step each rank must send and receive all gradients: as many bytes as the model has. How long that takes
# depends on the cable. An all-reduce in a ring of n GPUs moves 2 (n - 1) / n times the bytes, after a little latency
# for each hop:

# %%
import vgpu

sizes = [2.0**power for power in range(10, 31)]
links = {name: vgpu.get_interconnect(name) for name in ("ethernet-10g", "pcie3", "nvlink4")}
notebook.show(
    pictures.draw_links(
        sizes,
        {
            name: [
                vgpu.device.cost.collective_seconds(link, "all_reduce", size, 4)
                for size in sizes
            ]
            for name, link in links.items()
        },
    ),
    "Seconds of an all-reduce over the bytes of gradients for three interconnects, "
    "both logarithmic: flat for small sizes, then rising in proportion; ethernet-10g "
    "lies highest, then pcie3, then nvlink4.",
)

# %% [markdown]
# *An all-reduce of four GPUs over bytes, for three links.* Two lessons: many small messages are bad (left, everything
# is latency), and large models on slow links wait (right, everything is bandwidth).
#
# But gradients do not come all at once. Backward begins with the last layer, and once it has passed a layer, that
# gradient is ready and could be on its way while the GPU computes the next one. DistributedDataParallel collects
# gradients in *buckets* and starts an all-reduce whenever a bucket is full. Here is one step of one GPU out of two,
# for a model of 48 MiB, with three sizes of buckets:

# %%
steps = {}
for name, bucket_mb in (("one bucket", 1000), ("25 MiB (default)", 25), ("4 MiB", 4)):
    steps[name] = ranks.run(
        rank_demos.ddp_step,
        2,
        machine="vgpu:T4",
        values=False,
        layers=12,
        width=1024,
        batch=512,
        bucket_mb=bucket_mb,
    )[0]
notebook.show(
    pictures.draw_overlap(
        steps,
        "Gradients travel while backward goes on",
        kinds={"forward": "forward", "backward": "backward", "exchange": "all-reduce"},
    ),
    "A step of one GPU for three bucket sizes. With one bucket the all-reduce begins "
    "when backward has ended. With 25 MiB the first of two runs during backward. With "
    "4 MiB most of them run during backward and the step is shortest.",
)

# %% [markdown]
# *Computation above, all-reduce below, one row per bucket size.* With one bucket, nothing overlaps. With small ones
# the exchange begins early, and only the tail is left over: the first layer's gradient is the last to be ready, and
# nothing is left to hide it behind. (The short green piece at the very end copies the gradients out of the buckets.)
# Too small is no good either: see the left side of the picture before.
#
# The consequence for measuring: the time of a step is *not* compute plus communication. From outside
# you can measure how much longer a step becomes by the exchange.
#
# ## 5. Is it worth it?
#
# Two questions. *Strong* scaling: the same batch, shared among more GPUs; how much sooner is it done? *Weak* scaling:
# the same batch per GPU; how much more is done in the same time? The pieces by hand, for 64 MiB of gradients over
# PCIe 3.0 without overlap, and a computation of 6 ms for the whole batch on one GPU:

# %%
compute, gradients = 6e-3, 64 * 2**20
by_hand = {"strong: the same batch for all": [], "weak: the same batch for each": []}
for world_size in (1, 2, 4, 8):
    exchange = vgpu.device.cost.collective_seconds(
        links["pcie3"], "all_reduce", gradients, world_size
    )
    for bars, work in zip(by_hand.values(), (compute / world_size, compute), strict=True):
        bars.append((str(world_size), {"compute": work, "communication": exchange}))
notebook.show(
    pictures.draw_parts(by_hand, "The work can be shared, the exchange cannot"),
    "Stacked bars of a step on 1, 2, 4 and 8 GPUs. Strong: the compute part halves "
    "with each doubling while the exchange grows a little, so the bars do not become "
    "shorter. Weak: the compute part stays, the exchange grows to a limit.",
)

# %% [markdown]
# *A step on 1 to 8 GPUs, put together by hand.* The exchange depends on the parameters, not on the batch. Under
# strong scaling it stands against less and less work. Under weak scaling it stands against the same work, and grows
# less and less.
#
# ### Your part: measure it (Task 3.2)
#
# Your `measure_scaling` on 1, 2 and 4 GPUs, cut into pieces by your `split_step`. Expect the same shape as above,
# with less orange under weak scaling, where there is more backward to hide behind, and a small orange piece even on
# one GPU: gradients are copied into buckets there, too.

# %%
method = "fork" if course.simulated else "spawn"
measured = {
    kind: ranks.call(
        lab.measuring.measure_scaling,
        gpus=4,
        values=False,
        world_sizes=(1, 2, 4),
        kind=kind,
        device=course.device.type,
        steps=2,
        start_method=method,
    )
    for kind in ("strong", "weak")
}
notebook.show(
    pictures.draw_parts(
        {
            kind: [
                (str(point.world_size), lab.scaling_analysis.split_step(point.profile))
                for point in points
            ]
            for kind, points in measured.items()
        },
        "A step by your measure_scaling and split_step",
    ),
    "Stacked bars of a step on 1, 2 and 4 GPUs for strong and weak scaling, with "
    "compute and communication.",
)

# %% [markdown]
# And the verdict, by your `efficiency` and `communication_share`. Expect weak scaling far above strong scaling, and
# the share of communication high where efficiency is low.

# %%
points = [point for of_kind in measured.values() for point in of_kind]
ratios = {
    kind: dict(sorted(lab.scaling_analysis.efficiency(points, kind).items()))
    for kind in measured
}
shares = {
    kind: {
        point.world_size: lab.scaling_analysis.communication_share(point.profile)
        for point in of_kind
    }
    for kind, of_kind in measured.items()
}
notebook.show(
    pictures.draw_efficiency(ratios, shares),
    "Left efficiency, right share of communication over 1, 2 and 4 GPUs. Weak scaling "
    "keeps about 60 percent on four GPUs, strong scaling about 20 percent; the share "
    "of communication rises to 50 and 75 percent.",
)

# %% [markdown]
# ### Waiting is not communication
#
# A rank that is ready early waits in the all-reduce for the slowest one. On its own clock that looks like
# communication. Here is a step with one slow rank, made up; your `split_step` separates the pieces, and must add up
# to the same length. Expect little orange and much grey in its row: a faster cable would not help here.
# `name_bottleneck` should say so.

# %%
from labkit.results import StepProfile

profile = StepProfile(
    data_seconds=(1e-3, 1e-3, 1e-3, 1e-3),
    compute_seconds=(6e-3, 6.5e-3, 6e-3, 15e-3),
    communication_seconds=(11e-3, 10.5e-3, 11e-3, 2e-3),
)
notebook.show(
    pictures.draw_ranks(profile),
    "A step of four ranks: ranks 0 to 2 have a short compute part and a long "
    "communication part, rank 3 a long compute part.",
)

# %%
notebook.show(
    pictures.draw_ranks(profile, lab.scaling_analysis.split_step(profile)),
    "The same step with a row below that shows your split_step: data, compute, "
    "imbalance and a short communication.",
)
print("the bottleneck is:", lab.scaling_analysis.name_bottleneck(profile))

# %% [markdown]
# ## 6. Accumulation: pay for one exchange instead of four
#
# If the exchange is the expensive part, do it less often: add up the gradients of four small batches and exchange
# once. The result must be that of one large batch. Where that goes wrong is arithmetic, not PyTorch:

# %%
losses_of = [
    [2.0, 2.0, 2.0, 2.0],
    [2.0, 2.0, 2.0, 2.0],
    [10.0],
]  # three batches, the last one short
everything = [loss for batch in losses_of for loss in batch]
means = [sum(batch) / len(batch) for batch in losses_of]
print(f"mean over all nine samples      {sum(everything) / len(everything):.3f}")
print(f"mean of the three means         {sum(means) / 3:.3f}")
print(f"sum of the means / window of 4  {sum(means) / 4:.3f}")

# %% [markdown]
# Three formulas, three answers, and only the first is what one large batch would have. They agree when all batches
# are equally large and the window is full, which is when one tests them. Texts have batches with different numbers of
# tokens, and most epochs end with a short window.
#
# ### Your part: accumulate (Task 3.3)
#
# Your `train_with_accumulation` on one process, against steps on whole windows in float64, where only logic can
# differ. Expect four green bars, far left of the line. An orange one names the case that is weighed wrongly.

# %%
from labs.lab3_distributed.accumulation import IGNORED


def steps_on_whole_windows(model, batches, window, criterion):
    """The reference: one large batch per step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for first in range(0, len(batches), window):
        inputs, targets = (
            torch.cat(parts) for parts in zip(*batches[first : first + window], strict=True)
        )
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()


def words(counts, length=12):
    """Batches of 4 texts; only the first few tokens of a batch count."""
    made = []
    for count in counts:
        targets = torch.randint(0, 10, (4, length))
        targets.flatten()[count:] = IGNORED
        made.append((torch.randn(4, length, 16, dtype=torch.float64), targets))
    return made


def token_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def numbers(sizes):
    return [
        (
            torch.randn(size, 16, dtype=torch.float64),
            torch.randn(size, 10, dtype=torch.float64),
        )
        for size in sizes
    ]


torch.manual_seed(1)
cases = {
    "4 batches of 8": (numbers([8] * 8), nn.functional.mse_loss),
    "last window short": (numbers([8] * 6), nn.functional.mse_loss),
    "batches uneven": (numbers([8, 3, 5, 8]), nn.functional.mse_loss),
    "tokens uneven": (words([40, 7, 22, 48]), token_loss),
}
differences = {}
for name, (batches, criterion) in cases.items():
    large, small = nn.Linear(16, 10).double(), nn.Linear(16, 10).double()
    small.load_state_dict(large.state_dict())
    steps_on_whole_windows(large, batches, 4, criterion)
    lab.accumulation.train_with_accumulation(
        small,
        batches,
        4,
        optimizer=torch.optim.SGD(small.parameters(), lr=0.1),
        criterion=criterion,
    )
    differences[name] = float(
        ((large.weight - small.weight).abs().max() / large.weight.abs().max()).detach()
    )
notebook.show(
    pictures.draw_differences(differences, "Your accumulation next to one large batch"),
    "One bar per case with the relative difference of the weights on a logarithmic "
    "axis; all lie far left of the line 1e-6.",
    is_simulated=False,
)

# %% [markdown]
# Now on two ranks, each on a GPU of its own, with eight batches per rank in windows of four: two optimizer steps.
# Expect orange blocks at the end of each window only (one per bucket; thin lines, if there are any, exchange mere
# counts), and as many bytes per step as the model has. Orange after every batch, and four times the bytes, mean that
# `no_sync()` is missing, or not around the forward pass.

# %%
torch.manual_seed(1)
width, per_rank = 512, 8
batches = [
    [(torch.randn(64, width), torch.randn(64, width)) for _ in range(per_rank)]
    for _ in range(2)
]
student = lab.accumulation.train_with_accumulation
windows = ranks.run(
    rank_demos.watch_accumulation,
    2,
    machine="vgpu:T4",
    module=student.__module__,
    function=student.__name__,
    batches=batches,
    accumulation_steps=4,
    width=width,
    layers=4,
)
first = windows[0]
notebook.show(
    pictures.draw_overlap(
        {"rank 0": first.spans, "rank 1": windows[1].spans},
        "Two windows of four batches by your train_with_accumulation",
        kinds={"other": "computation and copies", "exchange": "all-reduce"},
    ),
    "Timeline of two ranks: computation for four batches, then the exchange, and the "
    "same once more.",
)
print(
    f"exchanged per step: {first.exchanged_bytes / first.optimizer_steps / 2**20:.2f} MiB"
)
print(f"the model has:      {first.model_bytes / 2**20:.2f} MiB")
print(f"samples per step:   {first.effective_batch_sizes}")
print(
    f"largest difference between the two replicas: {float((first.weights - windows[1].weights).abs().max()):g}"
)

# %% [markdown]
# ## 7. Stop, and go on (Task 3.4)
#
# A checkpoint is good if a training that was interrupted ends as one that was not. Your `train` with your
# `save_checkpoint` and `load_checkpoint`: six epochs at a stretch on two ranks, and three on two ranks, then three
# more on **one**. Expect the second run to go on exactly where the first line is. A jump at epoch 4 means that
# something was not saved (momentum?); a second run that begins at epoch 1 found no checkpoint.
#
# All ranks call the function, rank 0 alone writes, and the file is old or new but never half. A write that goes
# straight to the file's own name leaves half of it when the disk is full, and the old one is gone.


# %%
def run_of(epochs, world_size, checkpoint=None):
    torch.manual_seed(0)
    return ranks.run(
        lab.ddp_training.train,
        world_size,
        device=course.device.type,
        model=models.mlp(hidden=(32,)),
        dataset=data.load("digits"),
        epochs=epochs,
        batch_size=-(-1438 // world_size),
        learning_rate=0.3,
        checkpoint=checkpoint,
    )[0].losses


file = course.folder / "digits.pt"
file.unlink(missing_ok=True)
whole = run_of(6, 2)
before = run_of(3, 2, file)
after = run_of(6, 1, file)
notebook.show(
    pictures.draw_runs(
        {
            "without a break": (1, whole),
            "2 ranks, stopped after 3 epochs": (1, before),
            "gone on, on 1 rank": (6 - len(after) + 1, after),
        },
        "A break that nobody notices",
    ),
    "Mean loss over six epochs; the run that was stopped after three epochs and its "
    "continuation follow the line without a break.",
)

# %% [markdown]
# ## 8. Five faults (Task 3.5)
#
# `ddp_debugging.py` hides a port in use, a hang, replicas that drift apart, repeated data and unused parameters. You
# have seen most of them above: drifting and repeated data show in no loss curve, and a hang is a rank that does not
# come to an appointment. This cell runs the script on two ranks and gives up after 20 seconds; `py-spy dump --pid`
# shows where a process stands.

# %%
debugged = ranks.run(
    lab.ddp_debugging.train_two_heads,
    2,
    device=course.device.type,
    timeout_seconds=15.0,
    limit_seconds=20.0,
)[0]
notebook.card(
    f"It ends, with losses {', '.join(f'{loss:.3f}' for loss in debugged.losses)}."
)

# %% [markdown]
# It ends: is it right? Change the head that is used (`TwoHeads(head=1)`), compare the replicas, look at who gets
# what.
#
# ## 9. Work in the notebook, if you like
#
# You can write a function here instead of in the file. Begin the cell with `# export:` and the name of the module,
# define the function with the name and arguments of the stub, and then, in a terminal,
#
#     .venv/bin/gpulabs notebook export notebooks/lab3.ipynb
#
# replaces the stub with it. It never overwrites something newer without asking. Ranks are new processes that
# import your functions from the files: what is only in the notebook, they do not see.

# %%
# Take away the first "# " of each line below to use it.
# # export: lab3_distributed/scaling_analysis.py
# def communication_share(profile):
#     ...

# %% [markdown]
# ## 10. How far you are
#
# The next cell grades this lab as `make grade LAB=3` does, and says what to do next. `spawn` and torchrun, which
# start new interpreters, and the report are not in this notebook: run the programs in a terminal.
#
# While you work, a cell with `%grade lab3.accumulation` asks one criterion, again only what your last edit can have
# changed.

# %%
course.grade()
