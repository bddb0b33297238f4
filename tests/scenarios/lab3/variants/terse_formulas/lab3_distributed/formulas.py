from labkit import plotting


def mean(xs):
    return sum(xs) / len(xs)


def speedup(points, kind="strong"):
    t = {p.world_size: p.step_seconds / p.batch_size for p in points if p.kind == kind}
    if 1 not in t:
        raise ValueError(kind)
    return {n: t[1] / t[n] for n in sorted(t)}


def efficiency(points, kind="strong"):
    return {n: s / n for n, s in speedup(points, kind).items()}


def split_step(p):
    d, c, w = p.data_seconds, p.compute_seconds, [a + b for a, b in zip(p.data_seconds, p.compute_seconds, strict=True)]
    x = min(p.communication_seconds)
    return {"communication": x, "data": mean(d), "imbalance": max(w) - mean(w), "compute": mean(c)}


def communication_share(p):
    s = split_step(p)
    return s["communication"] / sum(s.values())


def name_bottleneck(p, *, threshold=0.2):
    s = split_step(p)
    t = sum(s.values())
    del s["compute"]
    n = sorted(s, key=s.get, reverse=True)[0]
    return n if s[n] / t >= threshold else "compute"


def plot_scaling(points, path):
    f, (a,) = plotting.new_figure("Speedup", x_label="ranks", y_label="times")
    for k, c in zip(sorted({p.kind for p in points}), plotting.COLORS, strict=False):
        s = speedup(points, k)
        a.scatter(s.keys(), s.values(), color=c, label=k)
    a.plot(*[sorted({p.world_size for p in points})] * 2, ":")
    a.legend()
    return plotting.save_png(f, path)
