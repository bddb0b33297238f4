"""Judges how many samples a training puts through the model at once, by the products that the device computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gradebox.run.assertions import CheckFailed, require
from grader.lab4.oom.cases import Fits, Steady, SteadyReply, Trainings, TrainingsReply
from grader.shared.readings import ProductCount

LAYERS = 48
_SOME = 0.99


def require_small_products(
    inputs: Trainings, reply: TrainingsReply, steady: Callable[[], tuple[Steady, SteadyReply]]
) -> None:
    """Fail unless the training whose values are compared is one of micro-batches: a large model shows no values.

    If a small model does not get them either, other checks say so, and are charged for it.
    """
    try:
        of_steady, seen = steady()
    except CheckFailed:
        return
    if any(call.samples > of_steady.micro_batch for call in seen.forwards):
        return
    layers, width, _ = np.shape(inputs.weights)
    of_a_sample = 2.0 * width**2
    largest = max((ran["flops"] for ran in reply.products), default=0.0) / of_a_sample
    require(
        largest <= inputs.micro_batch,
        f"train_large_model() with micro_batch={inputs.micro_batch} computes a product of "
        f"{largest:.3g} samples at once",
        "Cut each batch into micro-batches, whatever the model and the device are.",
    )
    trained, validated = sum(inputs.batches), sum(inputs.validation)
    # Backward has two products for each one of forward; nobody needs the gradient of the data.
    least = inputs.epochs * (trained * (3 * layers - 1) + validated * layers) * of_a_sample
    ran = sum(ran["flops"] * ran["count"] for ran in reply.products)
    require(
        ran >= _SOME * least,
        f"train_large_model() computes products of {ran:.4g} FLOPs, expected {least:.4g} at least",
        "Put every sample through the model in training and in validation.",
    )


def require_computed(products: Sequence[ProductCount], inputs: Fits) -> None:
    """Fail unless the device computed what the training of all samples takes, in micro-batches."""
    layer = 2 * inputs.length * 4096**2
    largest = max((product["flops"] for product in products), default=0)
    require(
        largest <= inputs.micro_batch * layer,
        f"with micro_batch={inputs.micro_batch}, {largest / layer:.4g} samples went through a layer at once",
        "Cut each batch into micro-batches, in training and in validation.",
    )
    done = sum(product["flops"] * product["count"] for product in products)
    # Of the first layer's products, the gradient of the data is nobody's business.
    least = layer * ((3 * LAYERS - 1) * sum(inputs.batches) + LAYERS * sum(inputs.validation))
    require(
        done >= 0.99 * least,
        f"the device computed products of {done:.4g} FLOPs, expected {least:.4g} at least: forward and backward of "
        "all samples of train_loader, and forward of those of val_loader",
        "Train on every batch of train_loader and validate on every batch of val_loader, with the model that is given.",
    )
