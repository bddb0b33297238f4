"""One step's gradient, before any all-reduce: each rank's own against a reference that its host computes.

After an all-reduce a wrong gradient is everybody's, replicas stay equal, and nobody could say whose it was.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cluster.acceptance.checks import broken
from cluster.acceptance.checks.compute import by_model
from cluster.acceptance.context import Context
from cluster.acceptance.records import Record, against_peers
from cluster.acceptance.verdict import Check, Status, Threshold
from cluster.models import resnet18

BATCH = 8
PIXELS = 16
SEED = 20
NEAR = Threshold(
    value=0.01,
    unit="of the largest element of a parameter's gradient",
    relation="at most",
    source="ours: on a CPU float32 differs from float64 by 1e-5 here, measured; a GPU sums in another order",
)
PASSES = 2e-3
"""Ours: float32 rounds to 1e-5, and to 1e-3 where something has turned TF32 on for all."""
ALIKE = Threshold(
    value=30.0, unit="times the median of the other GPUs", relation="at most",
    source="ours: GPUs of one model compute the same in the same order, or nearly",
)  # fmt: skip
LEAST = 1e-5
"""Below it nothing is compared: it is rounding."""


def measure(context: Context) -> dict[str, Any]:
    """The largest deviation of a gradient on this device from the host's in float64, and in which parameter it is."""
    generator = torch.Generator().manual_seed(SEED)
    images = torch.rand(BATCH, 3, PIXELS, PIXELS, generator=generator)
    labels = torch.randint(0, 10, (BATCH,), generator=generator)
    torch.manual_seed(SEED)
    net = _smooth(resnet18(3, classes=10))
    context.at("gradient on the host")
    reference = _gradients(net.double(), images.double(), labels)
    context.at("gradient on the device")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # this is about wrong numbers, not about rounded ones
    try:
        device = context.torch_device
        gradients = _gradients(net.float().to(device), images.to(device), labels.to(device))
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    if context.has_fault("wrong-gradient"):
        gradients["layer1.0.conv1.weight"][0, 0, 0, 0] += reference["layer1.0.conv1.weight"].abs().max()
    deviations = {name: _deviation(gradients[name], reference[name]) for name in reference}
    # What is not a number is the largest of all.
    worst = max(deviations, key=lambda name: (deviations[name] != deviations[name], deviations[name]))
    return {"deviation": deviations[worst], "parameter": worst, "parameters": len(deviations)}


def _smooth(net: nn.Module) -> nn.Module:
    """The net with SiLU for ReLU: at the kink of ReLU the last bit of an activation decides about a whole gradient."""
    for name, child in net.named_children():
        if isinstance(child, nn.ReLU):
            setattr(net, name, nn.SiLU())
        else:
            _smooth(child)
    return net


def _gradients(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    net.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(net(images), labels).backward()
    return {
        name: parameter.grad.detach().cpu().double()
        for name, parameter in net.named_parameters()
        if parameter.grad is not None
    }


def _deviation(actual: Tensor, reference: Tensor) -> float:
    return float((actual - reference).abs().max() / reference.abs().max())


def judge(records: Sequence[Record]) -> list[Check]:
    """A check for every rank."""
    checks = broken(records, "gradients", "gpu")
    for same in by_model([record for record in records if record.measured("gradients")]).values():
        deviations = [max(record.result("gradients")["deviation"], LEAST) for record in same]
        for record, ratio in zip(same, against_peers(deviations), strict=True):
            result = record.result("gradients")
            near = replace(NEAR, value=PASSES) if NEAR.holds(result["deviation"]) else NEAR
            status: Status = "fail" if near is NEAR else "pass" if near.holds(result["deviation"]) else "unverified"
            far = False
            if status == "pass" and ratio is not None and not ALIKE.holds(ratio):
                status, far = "unverified", True
            checks.append(
                Check(
                    name="gradient: before the all-reduce",
                    part="run" if record.gpu is None else "gpu",
                    subject=record.subject,
                    rank=record.rank,
                    status=status,
                    evidence=f"one step of ResNet-18, {result['parameters']} parameters: at most "
                    f"{result['deviation']:.2g} from the host's float64, in {result['parameter']}"
                    + (f"; {ratio:.3g} times as much as its peers" if far and ratio is not None else ""),
                    remedy="this GPU computes wrong gradients: take it out of service; dcgmi diag -r 3",
                    measured=ratio if far else result["deviation"],
                    threshold=ALIKE if far else near,
                )
            )
    return checks
