"""Mistakes of Lab 2 that several criteria recognise."""

from __future__ import annotations

from gradebox.run.assertions import Cause

NEVER_CLEARED = Cause(
    "never_cleared",
    "Call `optimizer.zero_grad()` once per window, before its first batch.",
    "lab2.scaling.accumulation_equals_one_large_batch",
    mistake="Gradients are never cleared: every step sees those of all steps before, for want of zero_grad()",
)
DEFAULT_DTYPE = Cause(
    "autocast_in_its_default_dtype",
    "Pass the dtype to autocast: `torch.autocast(device_type, dtype=dtype)`.",
    "lab2.amp.products_in_low_precision",
    mistake="The dtype of autocast is left at its default: the caller asks for bfloat16, and float16 runs",
)
EVALUATION_MODE = Cause(
    "trained_in_evaluation_mode",
    "Call `model.train()` before the first batch.",
    "lab2.amp.loss_time_and_memory_reported",
    mistake="The model is trained in evaluation mode: model.train() is missing",
)
EVALUATED_IN_TRAINING_MODE = Cause(
    "evaluated_in_training_mode",
    "Call `model.eval()` before the first batch of evaluate().",
    "lab2.amp.evaluates_every_sample",
    mistake="The model is evaluated in training mode, with dropout: model.eval() is missing",
)
