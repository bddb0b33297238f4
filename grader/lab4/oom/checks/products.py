"""Judges how many samples a training puts through the model at once, by the products that the device computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradebox.run.assertions import CheckFailed, require
from grader.lab4.oom.cases import Steady, SteadyReply, Trainings, TrainingsReply

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
