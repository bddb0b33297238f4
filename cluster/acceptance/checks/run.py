"""Judges how the ranks ended: which one died, hung or was never heard of, and which ones only waited for it."""

from collections.abc import Sequence

from cluster.acceptance.checks import skippers
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status

REMEDIES = {
    "died": "read the end of its log in the report; dmesg | grep -i -e oom -e xid on its node",
    "hung": "its position and stack are in the report; run again with NCCL_DEBUG=INFO, and with this rank left out",
    "lost": "is the node up? Look at the launcher's log (torchrun, Slurm, Kubernetes) for how its processes ended",
    "skipped": "read its log: what it did instead; run again with TORCH_DISTRIBUTED_DEBUG=DETAIL",
    "stopped": "fix what happened to the other rank, then run it again",
}


def judge(records: Sequence[Record]) -> list[Check]:
    """A check for every rank. Where ranks hang, only those are blamed that were behind the others when the run was
    called off: all go through the same positions, so the others waited for them."""
    gone = any(record.ending in ("died", "lost") for record in records)
    hanging = not gone and any(record.ending == "hung" for record in records)
    skipping = skippers(records)
    positions = [record.progress_at_stop for record in records if record.progress_at_stop is not None]
    behind = [record.rank for record in records if hanging and record.progress_at_stop == min(positions, default=None)]
    checks = _nodes(records)
    for record in records:
        status, evidence = _outcome(record, behind, together=len(behind) == len(records) > 1)
        if record.rank in skipping:
            status = "fail"
            evidence = (
                f"left {record.skipped_collectives} collectives out, so that the others waited for it; {evidence}"
            )
        elif skipping and status == "fail" and record.ending != "lost":
            status, evidence = "unverified", f"rank {skipping[0]} left a collective out; {evidence}"
        checks.append(
            Check(
                name="run: process",
                part="run",
                subject=record.subject,
                rank=record.rank,
                status=status,
                evidence=evidence,
                remedy=_remedy(record, behind, skipping),
            )
        )
    return checks


def _remedy(record: Record, behind: Sequence[int], skipping: Sequence[int]) -> str:
    if record.rank in skipping:
        return REMEDIES["skipped"]
    return REMEDIES.get("hung" if record.rank in behind else record.ending, "nothing")


def _nodes(records: Sequence[Record]) -> list[Check]:
    """A check for every node of which no rank was heard any more."""
    by_node: dict[str, list[Record]] = {}
    for record in records:
        by_node.setdefault(record.node, []).append(record)
    gone = {node: there for node, there in by_node.items() if all(record.ending == "lost" for record in there)}
    if len(by_node) < 2:
        return []
    return [
        Check(
            name="run: node",
            part="run",
            subject=f"node {node}",
            status="fail",
            evidence=f"no word from any of its ranks ({', '.join(str(record.rank) for record in there)})",
            remedy=REMEDIES["lost"],
        )
        for node, there in gone.items()
    ]


def _outcome(record: Record, behind: Sequence[int], *, together: bool) -> tuple[Status, str]:
    if record.rank in behind:
        others = "no rank was behind the others: they stood still together, so look at what joins them"
        if not together:
            others = "the others were further on and waited for it"
        return "fail", f"hung at {record.at_stop!r}: {record.detail or 'it went on when another was ended'}; {others}"
    if record.ending == "finished":
        return "pass", "went through all stages"
    if record.ending in ("died", "lost"):
        return "fail", f"{record.ending} at {record.at!r}: {record.detail}"
    at = record.at_stop or record.at
    return "unverified", f"waited for the others at {at!r} until it was ended ({record.detail})"
