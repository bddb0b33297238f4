"""Every rank has a GPU of its own that answers; each node shows as many as it should; all are of one model."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch

from cluster.acceptance import host
from cluster.acceptance.checks import broken
from cluster.acceptance.checks.links import board_of
from cluster.acceptance.context import Context
from cluster.acceptance.expectations import Expectations
from cluster.acceptance.records import Record
from cluster.acceptance.verdict import Check, Status, Threshold

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""proc_sys_kernel(5): drawn again when a machine starts."""
MOST_WITH_A_STRANGER = 3
"""GPUs of which one alone may be of another model, as in a workstation."""
PATTERN = 1 << 20
"""Numbers written to a GPU and read back."""


def measure(context: Context) -> dict[str, Any]:
    """Properties of this rank's GPU, after a copy to it and back; without a GPU only what software there is.

    Raises:
        RuntimeError: there is no GPU left for this rank, or what comes back is not what was sent.
    """
    software = {"torch": torch.__version__, "cuda": torch.version.cuda, "kind": context.device.torch_device,
                "boot_id": _boot_id(), "host": host.measure(), "environment": host.variables(os.environ)}  # fmt: skip
    if not context.on_gpu:
        return {**software, "device_name": context.device.name}
    count = torch.cuda.device_count()
    if context.index >= count:
        raise RuntimeError(f"no GPU is left for local rank {context.local_rank}: CUDA sees {count} on this node")
    torch.cuda.set_device(context.index)
    sent = torch.arange(PATTERN, dtype=torch.int32)
    if not torch.equal(sent.to(context.torch_device).cpu(), sent):
        raise RuntimeError("a copy to the GPU and back changed the data")
    properties = torch.cuda.get_device_properties(context.index)
    return {
        **software,
        "index": context.index,
        "device_name": properties.name,
        "memory_bytes": properties.total_memory,
        "compute_capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "uuid": str(getattr(properties, "uuid", "")) or None,
        "nccl": None if context.device.simulated else list(torch.cuda.nccl.version()),
        "peak_tflops": context.device.peaks.tflops if context.device.peaks else None,
        "held_ratio": context.device.peaks.held_ratio if context.device.peaks else None,
        "seen_by_cuda": count,
        "seen_by_nvml": _count_of_nvml(),
        "restricted": "CUDA_VISIBLE_DEVICES" in os.environ,
        "given_by_slurm": int(os.environ["SLURM_GPUS_ON_NODE"]) if "SLURM_GPUS_ON_NODE" in os.environ else None,
    }


def _boot_id() -> str | None:
    """The same in all pods of a machine, and on no other machine, whatever they are called."""
    try:
        return BOOT_ID.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _count_of_nvml() -> int | None:
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def judge(
    records: Sequence[Record], *, expected: int | None, source: str = "--expect-gpus", file: Expectations | None = None
) -> list[Check]:
    """Checks of presence; `expected` is the number of GPUs that each node should have, None if any will do; `source`
    says who expects it; `file` how many models there are."""
    checks = broken(records, "presence", "gpu")
    there = [record for record in records if record.measured("presence")]
    with_gpu = [record for record in there if record.gpu is not None]
    if there and not with_gpu:
        checks.append(
            Check(
                name="presence: GPU",
                part="gpu",
                subject="all ranks",
                status="unverified",
                evidence="there is no GPU: all ranks ran on the CPU, so nothing about GPUs was tested",
                remedy="run it where nvidia-smi lists GPUs and torch.cuda.is_available() says True",
            )
        )
        return checks
    if not there:
        return checks
    for record in there:
        result = record.result("presence")
        if record.gpu is None:
            evidence = "this rank sees no GPU, others do"
        else:
            major, minor = result["compute_capability"]
            evidence = (
                f"{result['device_name']}, {result['memory_bytes'] / 2**30:.1f} GiB, compute capability {major}.{minor}"
                f", {result['multiprocessors']} multiprocessors, CUDA {result['cuda']}, PyTorch {result['torch']}; "
                f"{PATTERN * 4 >> 20} MiB copied there and back"
            )
        checks.append(
            Check(
                name="presence: GPU",
                part="gpu",
                subject=record.subject,
                rank=record.rank,
                status="fail" if record.gpu is None else "pass",
                evidence=evidence,
                remedy="nvidia-smi on that node; is the driver loaded, and did the job ask for all GPUs?",
            )
        )
    checks += _counts(with_gpu, expected, source)
    if expected is None:
        checks += _fewer_than_others(with_gpu)
    checks += _all_used(with_gpu)
    return [*checks, _models(with_gpu, file.count("cluster", "models") if file is not None else None)]


def _models(records: Sequence[Record], meant: int | None) -> Check:
    """Several models are fine, each is compared with its own; a single stranger among many, or modules of two models on
    one board, are hardly meant."""
    models = Counter(record.result("presence")["device_name"] for record in records)
    modules: dict[str, set[str]] = {}
    for record in records:
        if (known := board_of(record)) is not None and known.wired:
            modules.setdefault(record.node, set()).add(record.result("presence")["device_name"])
    stranger = len(models) > 1 and min(models.values()) == 1 and len(records) > MOST_WITH_A_STRANGER
    mixed = any(len(names) > 1 for names in modules.values())
    status: Status = "pass" if len(models) == 1 or not (stranger or mixed) else "unverified"
    if meant is not None:
        status = "pass" if len(models) == meant else "fail"
    return Check(
        name="presence: all alike",
        part="gpu",
        subject="all ranks",
        status=status,
        evidence=", ".join(f"{count} x {name}" for name, count in models.most_common()),
        remedy="is one of them the wrong board? If all are meant: --expect, [cluster] models, their number",
    )


def _by_node(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    nodes: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        nodes.setdefault(record.node, []).append(record.result("presence"))
    return nodes


def _seen(of_node: Sequence[dict[str, Any]]) -> int:
    """GPUs that CUDA shows the ranks of a node; where each rank is shown its own alone, as many as they have."""
    return max(int(of_node[0]["seen_by_cuda"]), _used(of_node))


def _used(of_node: Sequence[dict[str, Any]]) -> int:
    """Different GPUs that the ranks of a node work on."""
    return len({result.get("uuid") or result["index"] for result in of_node})


def _all_used(records: Sequence[Record]) -> list[Check]:
    """A GPU that no rank works on is not tested, and so the node is not."""
    return [
        Check(
            name="presence: every GPU is tested",
            part="gpu",
            subject=f"node {node}",
            status="pass" if _used(of_node) >= _seen(of_node) else "unverified",
            evidence=f"{_used(of_node)} of {_seen(of_node)} visible GPUs have a rank",
            remedy="start one rank per GPU, or show the test only what it is for (CUDA_VISIBLE_DEVICES)",
            measured=float(_used(of_node)),
            threshold=Threshold(
                value=float(_seen(of_node)), unit="GPUs", relation="at least", source="what CUDA shows on the node"
            ),
        )
        for node, of_node in _by_node(records).items()
    ]


def _fewer_than_others(records: Sequence[Record]) -> list[Check]:
    """A node on which neither CUDA nor NVML shows a GPU that is gone has fewer than the other nodes; not one of which
    Slurm says that the job was given so many."""
    by_node = _by_node(records)
    counts = {node: _seen(of_node) for node, of_node in by_node.items()}
    given = {node: of_node[0].get("given_by_slurm") if of_node[0]["restricted"] else None
             for node, of_node in by_node.items()}  # fmt: skip
    usual, _ = max(Counter(counts.values()).items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return [
        Check(
            name="presence: as many GPUs as other nodes",
            part="gpu",
            subject=f"node {node}",
            status="unverified",
            evidence=f"{count}; other nodes have {usual}",
            remedy="lspci | grep -i nvidia; dmesg | grep -i xid. --expect-gpus says how many there should be",
            measured=float(count),
            threshold=Threshold(value=float(usual), unit="GPUs", relation="at least", source="what most nodes have"),
        )
        for node, count in counts.items()
        if count < usual and given[node] != count
    ]


def _counts(records: Sequence[Record], expected: int | None, expected_by: str) -> list[Check]:
    checks = []
    for node, of_node in _by_node(records).items():
        result = of_node[0]
        cuda, nvml, allocated = _seen(of_node), result["seen_by_nvml"], result.get("given_by_slurm")
        # Where somebody chose among the GPUs, NVML may see more than this job was given: Slurm says how many.
        required = expected if expected is not None else allocated if result["restricted"] else nvml
        if required is None:
            continue
        source = expected_by if expected is not None else "NVML's count on the same node"
        if expected is None and result["restricted"]:
            source = "SLURM_GPUS_ON_NODE"
        checks.append(
            Check(
                name="presence: number of GPUs",
                part="gpu",
                subject=f"node {node}",
                status="pass" if cuda == required else "fail",
                evidence=f"CUDA sees {cuda}, NVML {'nothing' if nvml is None else nvml}, expected {required}",
                remedy="dmesg | grep -i -e xid -e 'fallen off'; reseat or drain the node; is MIG on?",
                measured=float(cuda),
                threshold=Threshold(value=float(required), unit="GPUs", relation="at least", source=source),
            )
        )
    return checks
