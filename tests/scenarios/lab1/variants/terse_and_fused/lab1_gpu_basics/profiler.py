from collections import defaultdict

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity as A

from labkit.results import OperationTime

from . import kept_profiler as kept


def profile_operations(step, *, device="cuda", steps=5, warmup=2):
    if steps < 1 or warmup < 0:
        raise ValueError
    g = "cuda" in f"{device}"
    s = torch.cuda.synchronize if g else tuple
    [step() for _ in range(warmup)]
    s()
    p = torch.profiler.profile(activities=[A.CPU, A.CUDA][: 1 + g])
    p.start()
    [step() for _ in range(steps)]
    s()
    p.stop()
    t = defaultdict(lambda: [0, 0.0, 0.0])
    for e in p.events():
        if e.name.startswith("aten::") and e.device_type == DeviceType.CPU:
            r = t[e.name]
            r[0] += 1
            r[1] += e.self_cpu_time_total * 1e-6
            r[2] += e.self_device_time_total * 1e-6
    rows = [OperationTime(name=n, calls=c, cpu_seconds=h, device_seconds=d) for n, (c, h, d) in t.items()]
    rows.sort(key=lambda r: (r.cpu_seconds, r.device_seconds)[g], reverse=True)
    return rows


def slowest(operations, count=5):
    if count < 1:
        raise ValueError
    g = any(o.device_seconds for o in operations)
    return sorted(operations, key=lambda o: (o.cpu_seconds, o.device_seconds)[g])[: -count - 1 : -1]


kept.profile_operations, kept.slowest = profile_operations, slowest
main = kept.main
