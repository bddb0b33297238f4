"""Memory patterns: nearly all of a GPU's memory is written, then read back, before the next pattern.

Not a hunt for every kind of fault, as memtest's are: what matters here is that no part of the memory is left out, which
products of a few hundred megabytes never touch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cluster.acceptance.checks import broken
from cluster.acceptance.context import Context
from cluster.acceptance.records import Record, against_peers, readable
from cluster.acceptance.verdict import Check, Status, Threshold

PATTERNS = {"zeros": 0, "ones": -1, "10": 0x5555555555555555, "01": ~0x5555555555555555}
"""Every bit both ways, alone and beside its opposite (JEDEC's and memtest86's checkerboard); of 64 bits."""
ADDRESSES = "addresses"
"""Each word holds its own number, which finds address lines that stick: two words that are one."""
SHARE = 0.9
"""Of what is free: libraries and the allocator need some."""
TESTED = Threshold(
    value=0.8, unit="of the GPU's memory", relation="at least", source="ours: 90 % of what an idle GPU has free"
)
ALIKE = Threshold(
    value=0.95, unit="of the median of the other GPUs", relation="at least",
    source="ours: contexts of one program take about as much on each",
)  # fmt: skip
THOROUGH_ROUNDS = 3
WORD_BYTES = 8
RUN_BYTES = 2**28
"""At once: comparing needs as much again for what should be there, also on a small GPU."""


def measure(context: Context) -> dict[str, Any]:
    """Wrong words by pattern, and how much memory was tested."""
    if not context.on_gpu:
        return {"skipped": "there is no GPU whose memory could be tested"}
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(context.torch_device)
    size = min(int(SHARE * free), context.sizes.memory_bytes or total)
    blocks = _take(context, size)
    rounds = context.sizes.memory_rounds * (THOROUGH_ROUNDS if context.options.thorough else 1)
    wrong: dict[str, int] = {}
    first: dict[str, int] = {}
    for round_ in range(rounds):
        for name in (*PATTERNS, ADDRESSES):
            context.at(f"memory, round {round_}, {name}")
            for number, block in enumerate(blocks):
                _write(block, name, number)
            if round_ == 0 and name == ADDRESSES and context.has_fault("bad-memory"):
                blocks[-1][17] ^= 1 << 40
            for number, block in enumerate(blocks):
                differing = (block != _expected(block, name, number)).nonzero()
                if len(differing):
                    wrong[name] = wrong.get(name, 0) + len(differing)
                    first.setdefault(name, number * RUN_BYTES + WORD_BYTES * int(differing[0]))
    tested = WORD_BYTES * sum(block.numel() for block in blocks)
    del blocks
    torch.cuda.empty_cache()
    return {"tested_bytes": tested, "total_bytes": total, "wrong": wrong, "first_byte": first,
            "rounds": rounds}  # fmt: skip


def _take(context: Context, byte_count: int) -> list[Tensor]:
    """Blocks of that many bytes, or of as many as there are."""
    blocks: list[Tensor] = []
    left = byte_count
    while left >= WORD_BYTES:
        size = min(left, RUN_BYTES)
        try:
            blocks.append(torch.empty(size // WORD_BYTES, dtype=torch.int64, device=context.torch_device))
        except torch.OutOfMemoryError:
            break
        left -= size
    # Comparing the last block needs memory, too.
    return blocks[:-1] if left >= WORD_BYTES and len(blocks) > 1 else blocks


def _expected(block: Tensor, name: str, number: int) -> Tensor | int:
    if name != ADDRESSES:
        return PATTERNS[name]
    start = number * RUN_BYTES // WORD_BYTES
    return torch.arange(start, start + block.numel(), device=block.device)


def _write(block: Tensor, name: str, number: int) -> None:
    expected = _expected(block, name, number)
    if isinstance(expected, int):
        block.fill_(expected)
    else:
        block.copy_(expected)


def judge(records: Sequence[Record]) -> list[Check]:
    """Checks of all GPUs' memory."""
    if all(record.gpu is None for record in records):
        return []
    there = [record for record in records if record.measured("memory")]
    return broken(records, "memory", "gpu") + [_one(record) for record in there] + _less_than_others(there)


def _less_than_others(records: Sequence[Record]) -> list[Check]:
    """Another program took some of it while it was tested; or something is left of one."""
    models: dict[Any, list[Record]] = {}
    for record in records:
        models.setdefault(record.result("presence").get("device_name"), []).append(record)
    checks = []
    for same in models.values():
        shares = [record.result("memory")["tested_bytes"] / record.result("memory")["total_bytes"] for record in same]
        for record, share, ratio in zip(same, shares, against_peers(shares), strict=True):
            if ratio is not None and TESTED.holds(share):
                checks.append(
                    Check(
                        name="memory: tested against the others", part="gpu", subject=record.subject, rank=record.rank,
                        status="pass" if ALIKE.holds(ratio) else "unverified",
                        evidence=f"{share:.0%} of the memory, {ratio:.2f} of what was tested on the others",
                        remedy="nvidia-smi while the test runs: what else takes memory of this GPU?",
                        measured=ratio, threshold=ALIKE,
                    )
                )  # fmt: skip
    return checks


def _one(record: Record) -> Check:
    result = record.result("memory")
    share = result["tested_bytes"] / result["total_bytes"]
    status: Status = "fail" if result["wrong"] else "pass" if TESTED.holds(share) else "unverified"
    evidence = f"{readable(result['tested_bytes'])}, {share:.0%} of the memory, {len(PATTERNS) + 1} patterns, "
    evidence += f"{result['rounds']} x: "
    evidence += (
        ", ".join(
            f"{count} wrong words with {name}, the first at byte {result['first_byte'][name]}"
            for name, count in result["wrong"].items()
        )
        or "every word right"
    )
    if status == "unverified":
        evidence += "; the rest was not free, or is not tested on this device"
    return Check(
        name="memory: patterns",
        part="gpu",
        subject=record.subject,
        rank=record.rank,
        status=status,
        evidence=evidence,
        remedy="wrong words: take the GPU out of service, have it replaced; not free: end what else runs on it",
        measured=share,
        threshold=TESTED,
    )
