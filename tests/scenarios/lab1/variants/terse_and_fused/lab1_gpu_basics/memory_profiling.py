import torch
from torch.cuda import empty_cache, memory_stats, reset_peak_memory_stats, synchronize
from torch.nn.functional import cross_entropy

from labkit import plotting
from labkit.results import STAGES, MemoryProfile, StageMemory

from . import kept_memory as kept

default_model, default_batch = kept.default_model, kept.default_batch


def profile_training_memory(
    create_model=default_model, create_batch=default_batch, *, device="cuda", dtype=torch.float32
):
    if "cpu" in f"{device}":
        raise ValueError
    rows = []

    def read():
        synchronize()
        m = memory_stats()
        a, r, p = (
            m[f"{k}.all.{w}"]
            for k, w in (("allocated_bytes", "current"), ("reserved_bytes", "current"), ("allocated_bytes", "peak"))
        )
        rows.append(StageMemory(stage=STAGES[len(rows)], allocated_bytes=a, reserved_bytes=r, peak_bytes=p))
        reset_peak_memory_stats()

    empty_cache(), reset_peak_memory_stats(), read()
    m = create_model().to(device, dtype)
    o = torch.optim.Adam(m.parameters(), fused=True)
    read()
    x, y = create_batch()
    x, y = x.to(device, dtype), y.to(device)
    z = m(x)
    read()
    e = cross_entropy(z, y)
    read()
    e.backward(), read(), o.step(), read(), o.zero_grad(), read()
    return MemoryProfile(device="cuda", dtype=f"{dtype}"[6:], stages=(*rows,))


def compare_precisions(create_model=default_model, create_batch=default_batch, *, device="cuda"):
    return [
        profile_training_memory(create_model, create_batch, device=device, dtype=t) for t in (torch.float, torch.half)
    ]


def stage_increases(profile):
    a = [s.allocated_bytes for s in profile.stages]
    return {s.stage: x - y for s, x, y in zip(profile.stages, a, [0, *a[:-1]], strict=True)}


def find_bottleneck(profile):
    return sorted(profile.stages, key=lambda s: -s.peak_bytes)[0].stage


def plot_memory(profiles, path):
    f, (x,) = plotting.new_figure("", y_label="GiB")
    for i, p in enumerate(profiles):
        for j, k in enumerate(("allocated_bytes", "reserved_bytes", "peak_bytes")):
            at = [n + (3 * i + j) / 3 / (len(profiles) + 1) for n in range(len(STAGES))]
            x.bar(at, [getattr(s, k) / 2**30 for s in p.stages], width=0.1, label=f"{k} {p.dtype}")
    x.set_xticks(range(7), STAGES)
    x.legend()
    return plotting.save_png(f, path)


for name in ("profile_training_memory", "compare_precisions", "stage_increases", "find_bottleneck", "plot_memory"):
    setattr(kept, name, locals()[name])
main = kept.main
