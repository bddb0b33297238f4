"""Sizes of the network that is sharded, and what a step gathers of it."""

from __future__ import annotations

from grader.sharding.fsdp.cases import BATCH, FEATURES, TrainCase


def parameter_bytes(case: TrainCase) -> tuple[int, int]:
    """Of the network's parameters in float32, and of one of its blocks."""
    width = case["width"]
    block = 4 * (4 * width * width + 3 * width)
    rest = 4 * (2 * FEATURES * width + width)
    return rest + case["blocks"] * block, block


def block_flops(case: TrainCase, ranks: int) -> int:
    """Of the products of all blocks in a step of one rank: two layers, forward and for two gradients each."""
    return case["blocks"] * 2 * 3 * 2 * (BATCH // ranks) * 2 * case["width"] ** 2


def gathered_bytes(case: TrainCase) -> tuple[int, int]:
    """The fewest and the most bytes that a step gathers."""
    whole, block = parameter_bytes(case)
    rest = whole - case["blocks"] * block
    once = case["blocks"] * block
    # What is left and the last block are needed last in forward and first in backward: either is right.
    return (2 * once - block + rest, 2 * (once + rest)) if case["reshard"] else (once, once + 2 * rest)


def begun_ahead(case: TrainCase) -> list[int]:
    """Of how many blocks the gathering has begun when block 0, 1, ... computes."""
    blocks = case["blocks"]
    return [min(index + 1 + case["prefetch"], blocks) for index in range(blocks)]
