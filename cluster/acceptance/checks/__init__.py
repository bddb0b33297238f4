"""The stages of the test: in each module what is measured on one rank, and how all ranks' measurements are judged."""

from collections.abc import Sequence

from cluster.acceptance.records import TOGETHER, Record
from cluster.acceptance.verdict import Check, Part

REMEDY_NO_GPU = "run it on a machine with NVIDIA GPUs"
REMEDY_BROKEN = "read this rank's log in the report; run the same on this GPU alone (CUDA_VISIBLE_DEVICES, --ranks 1)"


def broken(records: Sequence[Record], stage: str, part: Part) -> list[Check]:
    """A check for every rank on which a stage broke, was not begun, or was never reached.

    A collective that breaks because another rank is gone, or gave up, is that rank's failure, not this one's.
    """
    checks = []
    gone = [record.rank for record in records if record.ending in ("died", "hung", "lost")]
    gave_up = [
        record.rank for record in records if (failure := record.result(stage).get("error")) and not _of_peer(failure)
    ]
    ended = [record.rank for record in records if record.ending in ("hung", "stopped")]
    skipping = skippers(records)
    culprits = (skipping or gone or gave_up or ended) if stage in TOGETHER else []
    for record in records:
        result = record.result(stage)
        if error := result.get("error"):
            others = [rank for rank in culprits if rank != record.rank]
            excused = bool(others) and (bool(skipping or gone) or _of_peer(error)) and record.rank not in skipping
            how = "had skipped a collective" if skipping else "was gone"
            cause = f"broke off as rank {others[0]} {how}: " if excused else ""
            checks.append(
                Check(
                    name=f"{stage}: runs",
                    part=part,
                    subject=record.subject,
                    rank=record.rank,
                    status="unverified" if cause else "fail",
                    evidence=f"{cause}{error}",
                    remedy="fix what ended the other rank, then run it again" if cause else remedy_of(str(error)),
                )
            )
        elif reason := result.get("skipped"):
            requested = bool(result.get("asked"))
            checks.append(
                Check(
                    name=f"{stage}: runs",
                    part=part,
                    subject=record.subject,
                    rank=record.rank,
                    status="skipped" if requested else "unverified",
                    evidence=str(reason),
                    remedy="nothing, or run it without the option"
                    if requested
                    else "fix what failed before, run it again",
                    nothing_known=True,
                )
            )
        elif not result:
            checks.append(
                Check(
                    name=f"{stage}: runs",
                    part=part,
                    subject=record.subject,
                    rank=record.rank,
                    status="unverified",
                    evidence=f"never came to an end: the rank {record.ending} at {record.at!r}",
                    remedy="fix what ended the run first, then run it again",
                )
            )
    return checks


def skippers(records: Sequence[Record]) -> list[int]:
    """Ranks that issued fewer collectives than the program has: the others waited for them, and got other numbers."""
    return [record.rank for record in records if record.skipped_collectives]


def _of_peer(error: str) -> bool:
    """Whether an error of gloo or NCCL says that the other end is gone."""
    return any(words in error for words in ("by peer", "onnection", "Broken pipe", "remote process exited"))


def remedy_of(error: str) -> str:
    """One line for an error message, by what it is about."""
    known = {
        "out of memory": "end other programs on this GPU (nvidia-smi), or use a smaller --batch-size",
        "onnection": "find out why the peer's process ended, or its network is gone; NCCL_DEBUG=INFO names the path",
        "NCCL": "run again with NCCL_DEBUG=INFO; compare NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1 to find the path",
        "data set": "put the data set into the folder of --data-dir, or use --data digits",
    }
    return next((remedy for word, remedy in known.items() if word in error), REMEDY_BROKEN)
