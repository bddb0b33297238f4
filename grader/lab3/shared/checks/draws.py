"""What random numbers of a model must follow from, which several criteria of Lab 3 see."""

from __future__ import annotations

from gradebox.run.assertions import Cause

DRAWS = Cause(
    "draws_not_seeded",
    "Before each epoch, seed the random numbers by seed, epoch and rank together: torch.manual_seed(...).",
    "lab3.setup.reshuffled_each_epoch",
    mistake="The model's random numbers (dropout) do not follow from seed, epoch and rank",
)
