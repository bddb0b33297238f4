"""What a student compares in the labs, by card: which variant wins on the virtual card, and which on the real one.

`python -m benchmarks.lab_comparisons` writes `benchmarks/results/lab_comparisons.json` and two tables of
`docs/how-we-know-labs.md`. A real card's winner comes from figures that others published
(`benchmarks/published/figures.toml`), or from the H100 that we measured (`benchmarks/results/h100.json`). The other
cards run the same programs on the virtual GPU alone. The second table has every pair of published figures that differ
in one thing, so that nothing is chosen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import vgpu
from benchmarks.measure import RESULTS, save
from benchmarks.published import report, run
from benchmarks.published.figures import Figure, load
from benchmarks.published.timing import allow_tf32, wall_seconds

CARDS = ("T4", "V100", "A100-80GB", "H100")
_DIFFERENT = 1.15
# What two figures may differ in, by what a student calls it.
KINDS = {"type": "precision", "layout": "nhwc", "batch size": "batch", "kernel of attention": "kernel"}


@dataclass(frozen=True)
class Variant:
    """One side of a comparison: what runs, and where a real card's figure is.

    `published`: ids of figures by card. `recorded`: group and name in the H100's record.
    """

    name: str
    workload: str
    sizes: Mapping[str, Any]
    precision: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    recorded: tuple[str, str] | None = None


@dataclass(frozen=True)
class Comparison:
    """Two variants of which a lab, a lesson or a notebook asks which is faster."""

    lab: str
    title: str
    variants: tuple[Variant, Variant]


def _ids(**by_card: str) -> Mapping[str, str]:
    return {
        card: by_card[key] for card, key in zip(CARDS, ("t4", "v100", "a100", "h100"), strict=True) if key in by_card
    }


_CUBE = {"m": 4096, "n": 4096, "k": 4096}
_RESNET = {"model": "resnet50", "batch": 64}
_IMAGES = {"model": "resnet50", "nhwc": False}
_HEADS = {"batch": 32, "heads": 32, "seq": 512, "dim": 64, "causal": False, "mode": "fwd_bwd"}
_STEP = "training step, seconds"


def _step(name: str) -> tuple[str, str]:
    return _STEP, name


COMPARISONS = (
    Comparison("Lab 1", "type, a product of 4,096 cubed", (
        Variant("FP32", "matmul", _CUBE, "fp32", _ids(t4="mmbest-t4-fp32", v100="mm-v100-fp32-4096",
                a100="mmbest-a100-fp32", h100="mm-h100-fp32-4096")),
        Variant("FP16", "matmul", _CUBE, "fp16", _ids(t4="mmbest-t4-fp16", v100="mm-v100-fp16-4096",
                a100="mmbest-a100-fp16", h100="mm-h100-fp16-4096")),
    )),
    Comparison("Lab 2", "type, training ResNet-50", (
        Variant("FP32", "cnn_train", _RESNET, "fp32", _ids(v100="rn50-v100-128-fp32-nchw"),
                _step("resnet50, 64 x 224, FP32")),
        Variant("AMP", "cnn_train", _RESNET, "amp_fp16", _ids(v100="rn50-v100-128-amp-nchw"),
                _step("resnet50, 64 x 224, AMP")),
    )),
    Comparison("Lab 2", "type, one image through ResNet-50", (
        Variant("FP32", "cnn_evaluate", {**_IMAGES, "batch": 1}, "fp32",
                _ids(t4="rn50e-t4-fp32-1", v100="rn50e-v100-fp32-1")),
        Variant("AMP", "cnn_evaluate", {**_IMAGES, "batch": 1}, "amp_fp16",
                _ids(t4="rn50e-t4-amp-1", v100="rn50e-v100-amp-1")),
    )),
    Comparison("Lab 2", "type, training a small network (MobileNetV2)", (
        Variant("TF32", "cnn_train", {"model": "mobilenet_v2", "batch": 64}, "tf32", {},
                _step("mobilenet_v2, 64 x 224, TF32")),
        Variant("AMP", "cnn_train", {"model": "mobilenet_v2", "batch": 64}, "amp_fp16", {},
                _step("mobilenet_v2, 64 x 224, AMP")),
    )),
    Comparison("Lab 2", "layout, training ResNet-50 in AMP", (
        Variant("NCHW", "cnn_train", _RESNET, "amp_fp16",
                _ids(v100="rn50-v100-128-amp-nchw", a100="rn50-a100-amp-nchw"), _step("resnet50, 64 x 224, AMP")),
        Variant("NHWC", "cnn_train", {**_RESNET, "nhwc": True}, "amp_fp16",
                _ids(v100="rn50-v100-128-amp-nhwc", a100="rn50-a100-amp-nhwc"),
                _step("resnet50, 64 x 224, AMP, channels_last")),
    )),
    Comparison("Lab 2", "layout, training ResNet-50 in FP32", (
        Variant("NCHW", "cnn_train", _RESNET, "fp32", _ids(v100="rn50-v100-128-fp32-nchw"),
                _step("resnet50, 64 x 224, FP32")),
        Variant("NHWC", "cnn_train", {**_RESNET, "nhwc": True}, "fp32", _ids(v100="rn50-v100-128-fp32-nhwc"),
                _step("resnet50, 64 x 224, FP32, channels_last")),
    )),
    Comparison("Lab 4", "attention of 512 rows, forward and backward", (
        Variant("kernel by kernel", "attention_eager", {**_HEADS, "kernel": "eager"}, "fp16",
                _ids(a100="eager-a100-n64-512", h100="eager-h100-n64-512")),
        Variant("fused", "sdpa", _HEADS, "fp16", _ids(a100="fa2-a100-n64-512", h100="fa2-h100-n64-512")),
    )),
    Comparison("Lab 5", "batch size, images per second of ResNet-50 in FP32", (
        Variant("1", "cnn_evaluate", {**_IMAGES, "batch": 1}, "fp32",
                _ids(t4="rn50e-t4-fp32-1", v100="rn50e-v100-fp32-1")),
        Variant("32", "cnn_evaluate", {**_IMAGES, "batch": 32}, "fp32",
                _ids(t4="rn50e-t4-fp32-32", v100="rn50e-v100-fp32-32")),
    )),
    Comparison("Lab 5", "batch size, images per second of ResNet-50 in AMP", (
        Variant("32", "cnn_evaluate", {**_IMAGES, "batch": 32}, "amp_fp16",
                _ids(t4="rn50e-t4-amp-32", v100="rn50e-v100-amp-32")),
        Variant("128", "cnn_evaluate", {**_IMAGES, "batch": 128}, "amp_fp16",
                _ids(t4="rn50e-t4-amp-128", v100="rn50e-v100-amp-128")),
    )),
    Comparison("Lab 5", "optimizer, Adam for 64 tensors of 1 Mi", (
        Variant("not fused", "adam", {"tensors": 64, "elements": 1 << 20}, "", {},
                ("kernel: optimizer", "Adam, 64 x 1M")),
        Variant("fused", "adam", {"tensors": 64, "elements": 1 << 20, "fused": True}, "", {},
                ("kernel: optimizer", "AdamW fused, 64 x 1M")),
    )),
    Comparison("Lab 5", "optimizer, Adam for 60 tensors of 8", (
        Variant("one by one", "adam", {"tensors": 60, "elements": 8, "foreach": False}, "", {},
                ("host call", "Adam, 60 tensors, one by one")),
        Variant("fused", "adam", {"tensors": 60, "elements": 8, "fused": True}, "", {},
                ("host call", "AdamW fused, 60 tensors")),
    )),
)  # fmt: skip


def main() -> Path:
    """Run what no record has, and write the result and the tables; returns the result's path."""
    rows = [row for comparison in COMPARISONS for row in rows_of(comparison, _simulated)]
    pairs = list(published_pairs())
    report.replace("lab comparisons", table(rows))
    report.replace("pairs", table_of_pairs(pairs))
    return save("lab_comparisons", {"rows": rows, "pairs": pairs})


def rows_of(comparison: Comparison, simulated: Callable[[Variant, str], float]) -> Iterator[dict[str, Any]]:
    """A row for each card: how many times as fast the second variant is, on the real card and on the virtual one."""
    published = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))["figures"]
    recorded = _recorded()
    for card in CARDS:
        ids = [variant.published.get(card) for variant in comparison.variants]
        keys = [variant.recorded if card == "H100" else None for variant in comparison.variants]
        row: dict[str, Any] = {"lab": comparison.lab, "title": comparison.title, "card": card, "real": None}
        if all(ids):
            one, other = (published[name] for name in ids)
            row["real"] = other["published"] / one["published"]
            row["virtual"] = other["simulated"] / one["simulated"]
            row["source"] = "published"
        elif all(keys):
            (one, here), (other, there) = (recorded[key] for key in keys if key)
            row["real"], row["virtual"], row["source"] = one / other, here / there, "our H100"
        else:
            one, other = (simulated(variant, card) for variant in comparison.variants)
            row["virtual"], row["source"] = other / one, ""
        names = [variant.name for variant in comparison.variants]
        yield {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()} | {
            "variants": names
        }


def _recorded() -> dict[tuple[str, str], tuple[float, float]]:
    rows = json.loads((RESULTS / "h100_compared.json").read_text(encoding="utf-8"))["rows"]
    return {(row["group"], row["name"]): (row["measured"], row["simulated"]) for row in rows}


def _simulated(variant: Variant, card: str) -> float:
    """How fast it is on the virtual card: any rate, the same one for both variants."""
    sizes = dict(variant.sizes)
    if variant.workload == "sdpa":  # flash attention needs an A100
        sizes["kernel"] = "efficient" if card in ("T4", "V100") else "flash"
    with vgpu.attach(card, values=False):
        allow_tf32(variant.precision)
        if variant.workload == "adam":
            return _adam(sizes)
        return run.WORKLOADS[variant.workload](sizes, variant.precision)


def _adam(sizes: Mapping[str, Any]) -> float:
    """Steps per second."""
    weights = [torch.zeros(sizes["elements"], device="cuda", requires_grad=True) for _ in range(sizes["tensors"])]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    adam = torch.optim.Adam(weights, fused=sizes.get("fused"), foreach=sizes.get("foreach"))
    return 1 / wall_seconds(adam.step, 5)


# ---- every pair of published figures ---------------------------------------------------------------------------------


def published_pairs(figures: Sequence[Figure] | None = None) -> Iterator[dict[str, Any]]:
    """Pairs of one publisher, program and card that differ in one thing, and by 15 % in speed on the real card."""
    simulated = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))["figures"]
    known = [figure for figure in figures or load() if figure.id in simulated and figure.gpus == 1]
    for one, other in itertools.combinations(known, 2):
        kind = differ_in(one, other)
        if kind is None:
            continue
        real = _speed(other, other.value) / _speed(one, one.value)
        virtual = _speed(other, simulated[other.id]["simulated"]) / _speed(one, simulated[one.id]["simulated"])
        if max(real, 1 / real) >= _DIFFERENT:
            yield {
                "kind": kind, "card": one.gpu, "one": one.id, "other": other.id,
                "real": round(real, 3), "virtual": round(virtual, 3),
            }  # fmt: skip


def differ_in(one: Figure, other: Figure) -> str | None:
    """The only thing that two figures of one publisher differ in, if it is one of KINDS."""
    same = ("publisher", "gpu", "metric", "unit", "group")
    eager = {one.workload, other.workload} == {"sdpa", "attention_eager"}
    if any(getattr(one, name) != getattr(other, name) for name in same[:-1]):
        return None
    if one.workload != other.workload and not eager:
        return None
    settings = [{**figure.sizes, "precision": figure.precision} for figure in (one, other)]
    names = {
        name for name in {*settings[0], *settings[1]} if settings[0].get(name, False) != settings[1].get(name, False)
    }
    kinds = [kind for kind, name in KINDS.items() if names == {name}]
    return kinds[0] if kinds and "memory" not in one.group else None


def _speed(figure: Figure, value: float) -> float:
    """For each image or the like, higher for the faster one."""
    if figure.unit in ("ms", "s"):
        whole_batch = figure.workload in ("cnn_infer", "vit_infer")
        return (figure.sizes.get("batch", 1) if whole_batch else 1) / value
    return value


# ---- tables ----------------------------------------------------------------------------------------------------------


def _winner(row: Mapping[str, Any], where: str) -> str:
    gain = row[where]
    if gain is None:
        return "not known"
    one, other = row["variants"]
    return f"{other}, {gain:.2f} times" if gain >= 1 else f"{one}, {1 / gain:.2f} times"


def right(row: Mapping[str, Any]) -> bool:
    """Whether both have the same winner, or the real ones are too close to call."""
    close = max(row["real"], 1 / row["real"]) < _DIFFERENT
    same: bool = (row["real"] > 1) == (row["virtual"] > 1)
    return close or same


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown: a row for each comparison and card."""
    lines = [
        "| lab | what is compared | card | faster on the virtual card | on the real one |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        real = _winner(row, "real")
        if row["real"] is not None:
            close = max(row["real"], 1 / row["real"]) < _DIFFERENT
            real += (
                f" ({row['source']})"
                + ("" if right(row) else " **differs**")
                + (", too close to count" if close else "")
            )
        lines.append(f"| {row['lab']} | {row['title']} | {row['card']} | {_winner(row, 'virtual')} | {real} |")
    return lines


def table_of_pairs(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of Markdown: by what pairs differ in and by card, how many have the same winner."""
    lines = ["| pairs that differ in | card | pairs | same winner | others |", "|---|---|---:|---:|---|"]
    for kind in KINDS:
        for card in dict.fromkeys(pair["card"] for pair in pairs if pair["kind"] == kind):
            of = [pair for pair in pairs if (pair["kind"], pair["card"]) == (kind, card)]
            wrong = [pair for pair in of if not right(pair)]
            others = "; ".join(f"{pair['one']}, {pair['other']}" for pair in wrong)
            lines.append(f"| {kind} | {card} | {len(of)} | {len(of) - len(wrong)} | {others} |")
    agreeing = sum(map(right, pairs))
    lines.append(f"| **all** | | {len(pairs)} | {agreeing} | |")
    return lines


if __name__ == "__main__":
    print(main())
