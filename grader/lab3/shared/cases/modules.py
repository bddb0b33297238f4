"""The modules of a submission that probes of Lab 3 call."""

from __future__ import annotations

DDP = "lab3_distributed.ddp_training"
DEBUGGING = "lab3_distributed.ddp_debugging"
SCALING = "lab3_distributed.scaling_analysis"
