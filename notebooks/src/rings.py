# %% [markdown]
# # How eight GPUs add: a ring, and a switch that adds
#
# In each step of data-parallel training all ranks need the sum of all gradients: an *all-reduce*. Lab 3 takes its cost
# from a formula. This notebook builds the ring behind the formula, counts its steps and bytes, and then shows what
# newer NVLink switches do in its place. It goes with [Lab 3](lab3.ipynb); it has no tasks, and nothing in it is graded.

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
# ## 1. A ring, by hand
#
# `n` ranks sit in a circle, and each speaks to its neighbour only. Every buffer is cut into `n` parts. In each step
# every rank sends one part on, all at the same time, and what comes in is added to the rank's own numbers. After `n -
# 1` steps each rank has one part complete (*reduce-scatter*). Then the complete parts go round, and replace what is
# there, for another `n - 1` steps (*all-gather*). (P. Patarasuk and X. Yuan 2009, "Bandwidth optimal all-reduce
# algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69(2).) The numbers are real:

# %%
import torch

from labkit.notebook import pictures_laws, rank_demos, ranks


def ring_all_reduce(buffers, watch=lambda parts: None):
    """Sum the buffers, one per rank, in a ring; return the sums, the steps, and the bytes that the busiest link took."""
    n = len(buffers)
    parts = [list(buffer.clone().chunk(n)) for buffer in buffers]
    sent, steps = [0] * n, 0
    for adds in (True, False):
        for turn in range(n - 1):
            # All send at the same time: what is on its way was read before anything arrives.
            start = 0 if adds else 1
            going = [(rank, (rank + start - turn) % n) for rank in range(n)]
            messages = [(rank, part, parts[rank][part].clone()) for rank, part in going]
            for rank, part, message in messages:
                neighbour = (rank + 1) % n
                old = parts[neighbour][part]
                parts[neighbour][part] = old + message if adds else message
                sent[rank] += message.nbytes
            steps += 1
            watch(parts)
    return [torch.cat(each) for each in parts], steps, max(sent)


def holds(parts):
    return [[round(part[0].item()) for part in each] for each in parts]


ones = [torch.ones(4) for _ in range(4)]
states = [[[1] * 4 for _ in range(4)]]
ring_all_reduce(ones, lambda parts: states.append(holds(parts)))
notebook.show(
    pictures_laws.draw_ring(states),
    "A grid of four ranks and four parts, before the first step and after each of six. One cell per "
    "rank grows from 1 to 2, 3 and 4 ranks' numbers in three steps; then the complete parts spread "
    "to all ranks in three more.",
    is_simulated=False,
)

# %% [markdown]
# *How many ranks' numbers are in each part of each rank's buffer.* Green parts are complete. In no step does a rank
# send more than one part, and none is ever idle: that is why nothing can move fewer bytes, as long as only the ranks
# can add.
#
# Counted, for buffers of 1 MiB:

# %%
rows = []
for n in (2, 4, 8, 16):
    buffers = [torch.randn(2**18) for _ in range(n)]
    sums, steps, sent = ring_all_reduce(buffers)
    reference = torch.stack(buffers).double().sum(0)
    worst = max((result.double() - reference).abs().max().item() for result in sums)
    rows.append(
        (n, steps, round(sent / 2**20, 3), f"{2 * (n - 1) / n:.3f}", f"{worst:.0e}")
    )
notebook.table(
    ("ranks", "steps", "MiB over each link", "2 (n - 1) / n", "largest error of a sum"),
    rows,
)

# %% [markdown]
# Bytes hardly depend on the number of ranks, less than twice the buffer: large messages do not mind a large ring. Steps
# do, and each costs some microseconds of latency: small messages do.
#
# ## 2. A switch that adds
#
# From Hopper on, NVLink's switch has units that add. A GPU asks it for the sum of all ranks' numbers at one address,
# and gives it a number to write to all of them. Each GPU is responsible for one part. For all parts together every
# GPU's numbers go up once, and every result comes down once; next to that only the sums of its own part pass a GPU's
# link (down to keep it, up to pass it on). So (1 + 1 / n) times the buffer passes each link in each direction, in two
# steps: up to the switch, and down again. NVIDIA calls it NVLink SHARP, and NCCL calls its algorithm *NVLS*;
# `NCCL_NVLS_ENABLE=0` forbids it.


# %%
def switch_all_reduce(buffers):
    """Sum the buffers through a switch that adds; return the sums, the steps, and the bytes up a link."""
    n = len(buffers)
    parts = [buffer.chunk(n) for buffer in buffers]
    up = [0] * n
    results = []
    for owner in range(n):
        total = torch.zeros_like(parts[0][owner])
        for rank in range(n):  # up, and added on the way
            total = total + parts[rank][owner]
            up[rank] += parts[rank][owner].nbytes
        up[owner] += (
            total.nbytes
        )  # the owner gives the sum to the switch, which writes it to all
        results.append(total)
    return [torch.cat(results) for _ in range(n)], 2, max(up)


rows = []
for n in (2, 4, 8, 16):
    buffers = [torch.randn(2**18) for _ in range(n)]
    sums, steps, sent = switch_all_reduce(buffers)
    reference = torch.stack(buffers).double().sum(0)
    assert torch.allclose(sums[0].double(), reference, atol=1e-4)
    rows.append(
        (n, steps, round(sent / 2**20, 3), round(ring_all_reduce(buffers)[2] / sent, 2))
    )
notebook.table(
    ("ranks", "steps", "MiB up each link", "ring's bytes / switch's bytes"), rows
)

# %% [markdown]
# For two ranks it would move more, for four hardly less, and for many nearly half. NCCL takes NVLS for more than four
# GPUs.
#
# ## 3. Measured
#
# All-reduces of eight virtual H100 behind an NVLink switch, with `NCCL_NVLS_ENABLE` 0 and 1. Each rank is a process of
# its own, with `torch.distributed` and the backend "nccl" as in Lab 3. (A machine with eight real ones shows the same
# with [nccl-tests](https://github.com/NVIDIA/nccl-tests): `NCCL_NVLS_ENABLE=0 all_reduce_perf -b 32K -e 1G -f 2 -g 8`.)

# %%
sizes = [2**power for power in range(15, 31)]


def measured(machine, world_size, switch):
    ranks_seconds = ranks.run(
        rank_demos.all_reduce_seconds,
        world_size,
        machine=machine,
        values=False,
        sizes=sizes,
        switch=switch,
    )
    return [max(each) for each in zip(*ranks_seconds, strict=True)]


ring, switch = (measured("vgpu:H100", 8, each) for each in (False, True))
a100 = measured("vgpu:A100-80GB", 8, True)
notebook.show(
    pictures_laws.draw_all_reduces(
        {
            "8 A100, ring": list(zip(sizes, a100, strict=True)),
            "8 H100, ring": list(zip(sizes, ring, strict=True)),
            "8 H100, the switch adds": list(zip(sizes, switch, strict=True)),
        },
        [(size, old / new) for size, old, new in zip(sizes, ring, switch, strict=True)],
    ),
    "Left: microseconds of an all-reduce over its bytes, 32 KiB to 1 GiB. The switch's line lies lowest, "
    "then the H100's ring, then the A100's. Right: the ring takes about four times as long as the "
    "switch for 32 KiB, and less than one and a half times for 1 GiB.",
)


def bus(size, seconds):
    """What nccl-tests calls bus bandwidth: the ring's bytes over each link, by the time."""
    return round(2 * 7 / 8 * size / seconds / 1e9)


chosen = [(i, size) for i, size in enumerate(sizes) if size in (2**15, 2**20, 2**25, 2**30)]
notebook.table(
    ("MiB", "ring, µs", "GB/s", "switch, µs", "GB/s", "times faster"),
    [
        (
            round(size / 2**20, 3),
            round(ring[i] * 1e6, 1),
            bus(size, ring[i]),
            round(switch[i] * 1e6, 1),
            bus(size, switch[i]),
            round(ring[i] / switch[i], 2),
        )
        for i, size in chosen
    ],
    title="8 H100, simulated; GB/s of bus bandwidth, as nccl-tests has it",
)

# %% [markdown]
# *All-reduces of eight GPUs.* Small messages cost steps: two instead of fourteen. Large ones cost bytes, and gain less
# than the table of section 2 lets one hope for, because the switch's sums do not keep up with its links. The virtual
# GPU takes both rates from measurements: some 370 GB/s of bus bandwidth by the ring, 470 by the switch (NVIDIA/nccl
# issue 1374; S. Bekman, *Machine Learning Engineering*, network, "SHARP").
#
# Is 470 GB/s not more than an H100's link has, 450 in each direction? Bus bandwidth divides the *ring's* bytes by the
# time. What really passes the link is (1 + 1/8) / (14/8) of it:

# %%
print(f"{470 * (1 + 1 / 8) / (2 * 7 / 8):.0f} GB/s in each direction")

# %% [markdown]
# ## 4. Exercise: predict, then measure
#
# Replace each `None` by a number, run the cell, then the next one. A prediction within a fifth counts as found.
#
# 1. How many times as long as among two does an all-reduce of 32 KiB take among eight H100 *in a ring*? Latency is
# nearly all
#    of it: count the steps, and mind that 5 microseconds for the start are needed once, and 2.7 for each step.
# 2. How many times faster is an all-reduce of 32 KiB among *four* H100 because the switch can add?
# 3. And one of 1 GiB among eight *A100*?
# 4. How many times as long as for 512 MiB does the switch take for 1 GiB?

# %%
my_prediction = {
    "1. 32 KiB, ring, eight over two": None,
    "2. 32 KiB, four H100, ring over switch": None,
    "3. 1 GiB, eight A100, ring over switch": None,
    "4. switch, 1 GiB over 512 MiB": None,
}


# %%
def measure():
    two = measured("vgpu:H100", 2, False)
    four = [measured("vgpu:H100", 4, each)[0] for each in (False, True)]
    without = measured("vgpu:A100-80GB", 8, False)
    ratios = (
        ring[0] / two[0],
        four[0] / four[1],
        without[-1] / a100[-1],
        switch[-1] / switch[-2],
    )
    return dict(zip(my_prediction, ratios, strict=True))


notebook.check_prediction(
    my_prediction,
    measure,
    within=1.2,
    because="A ring of eight has fourteen steps, one of two has two. NCCL lets the switch add for more than four GPUs only, "
    "and an A100's switch cannot add at all. Large messages cost their bytes.",
)

# %% [markdown]
# **Try it.** Cut the buffer into more parts than there are ranks, so that a step is shorter and links are never idle
# (*pipelining*): what is gained for large buffers, and why does it not help small ones? And across machines, where no
# switch adds: what would you do inside of each machine first?
