"""Faults as workers would tell of them: the records of a sound machine with one thing changed.

Each goes through the whole judge and the report. The machine is eight H100s, or four nodes of two with InfiniBand.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.acceptance import baseline, expectations, report
from cluster.acceptance.records import Record
from tests.cluster import sound
from tests.cluster.faults.spoils import (
    SICK,
    Spoil,
    all_hang,
    element,
    ended,
    epochs,
    every,
    fitful,
    grown,
    half_of_replicas,
    instead,
    load,
    message,
    nan,
    no_fall,
    no_figure,
    node1,
    node_lost,
    of_one,
    pace,
    pair_data,
    pairs,
    product,
    reading,
    replicas,
    skips,
    slow_memory,
    slow_ring,
    stage,
    stalls,
    stopped_steps,
    storms,
    too_few,
    two_models,
    unknown_model,
    without_cuda,
    without_rank,
    wrong_once,
)

G = f"GPU {SICK} (rank {SICK}, node17)"
N = "GPU 1 (rank 3, node1)"
"""The same rank where there are four nodes."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is broken."""

    what: str
    spoil: Spoil
    check: str
    """The check that has to find it; where it is no verdict on the machine, the one that is unverified."""
    named: tuple[str, ...]
    """The subjects that this check has to name, and no others."""
    verdict: str = "FAIL"
    also: tuple[str, ...] = ()
    """Other checks that may fail because of it."""
    nodes: int = 0
    """0: the eight GPUs of one node."""
    words: tuple[str, ...] = ()
    """Of the command line."""
    expect: str = ""
    """A file of --expect."""
    compared: bool = False
    """Whether a sound machine's report is the baseline."""
    later: bool = False
    """Whether it was thought of by going through other tools."""


def all_of(rank_count: int = 8) -> tuple[str, ...]:
    return tuple(f"GPU {rank} (rank {rank}, node17)" for rank in range(rank_count))


IN_NODE1 = ("node node1",)
FAULTS: tuple[Fault, ...] = (
    # Before the run
    Fault(what="500 uncorrected memory errors before the run", spoil=reading(ecc_errors=500), check="sound: memory errors before the run", named=(G,)),
    Fault(what="a row remapping that waits for a reset", spoil=reading(remapped_rows=[0, 1, 1, 0]), check="sound: row remapping", named=(G,)),
    Fault(what="a row remapping that failed", spoil=reading(remapped_rows=[0, 3, 0, 1]), check="sound: row remapping", named=(G,)),
    Fault(what="PCIe x4 of x16", spoil=reading(pcie_width=4), check="sound: PCIe width and generation", named=(G,)),
    Fault(what="PCIe x8 of x16, on every GPU", spoil=every(lambda record: reading(rank=0, pcie_width=8)([record])), check="sound: PCIe width and generation", named=all_of()),
    Fault(what="PCIe generation 3 of 5 under load", spoil=reading(pcie_generation=3), check="sound: PCIe width and generation", named=(G,)),
    Fault(what="12 of 18 NVLinks", spoil=reading(nvlinks_up=12), check="sound: NVLinks", named=(G,)),
    Fault(what="no NVLink, on every GPU", spoil=every(lambda record: reading(rank=0, nvlinks_up=0)([record])), check="sound: NVLinks", named=all_of()),
    Fault(what="a driver that differs from the others", spoil=reading(driver="535.10.01"), check="sound: same driver", named=(G,)),
    Fault(what="another VBIOS", spoil=reading(vbios="96.00.10.00.00"), check="sound: same VBIOS", named=(G,)),
    Fault(what="another NCCL", spoil=stage("presence", nccl=[2, 20, 3]), check="sound: same NCCL", named=(G,)),
    Fault(what="another PyTorch", spoil=stage("presence", torch="2.12.0"), check="sound: same PyTorch", named=(G,)),
    Fault(what="another CUDA", spoil=stage("presence", cuda="12.6"), check="sound: same CUDA of PyTorch", named=(G,)),
    Fault(what="less memory than boards of its model", spoil=stage("presence", memory_bytes=40e9), check="sound: same memory of the GPU", named=(G,), also=("sound: memory of the data sheet, GiB",)),
    Fault(what="a lower power limit", spoil=reading(power_limit_watts=500.0), check="sound: same power limit", named=(G,)),
    Fault(what="a lower power limit, on every GPU", spoil=every(lambda record: reading(rank=0, power_limit_watts=500.0)([record])), check="sound: power limit", named=all_of(), verdict="INCOMPLETE"),
    Fault(what="two ranks on one GPU", spoil=stage("presence", uuid="1234-0"), check="sound: a GPU of its own", named=(G,), also=("presence: number of GPUs",)),
    Fault(what="a GPU that NVML sees and CUDA does not", spoil=too_few(seen_by_nvml=9), check="presence: number of GPUs", named=("node node17",)),
    Fault(what="fewer GPUs visible than Slurm gave", spoil=too_few(restricted=True, given_by_slurm=9), check="presence: number of GPUs", named=("node node17",)),
    Fault(what="a GPU that no rank works on", spoil=without_rank, check="presence: every GPU is tested", named=("node node17",), verdict="INCOMPLETE"),
    Fault(what="a node without GPUs among others", spoil=without_cuda, check="presence: GPU", named=(f"rank {SICK}, node17",)),
    Fault(what="no GPU left for a rank", spoil=instead("presence", {"error": "RuntimeError: no GPU is left for local rank 3"}), check="presence: runs", named=(f"rank {SICK}, node17",)),
    Fault(what="GPUs of two models", spoil=two_models, check="presence: all alike", named=("all ranks",), verdict="INCOMPLETE"),
    Fault(what="fewer nodes than --expect-nodes", spoil=lambda records: None, words=("--expect-nodes", "5"), nodes=4, check="expected: nodes", named=("all nodes",)),
    Fault(what="fewer GPUs than --expect-gpus", spoil=lambda records: None, words=("--expect-gpus", "16"), check="presence: number of GPUs", named=("node node17",)),
    Fault(what="another model than in the file of --expect", spoil=stage("presence", device_name="NVIDIA H100 PCIe"), expect='[gpu]\nmodel = "NVIDIA H100 80GB HBM3"', check="expected: model", named=(G,)),
    Fault(what="another driver than in the file of --expect, on all nodes", spoil=lambda records: None, expect='[software]\ndriver = "590.1"', check="expected: driver", named=all_of()),
    Fault(what="no permission to read the memory errors", spoil=reading(ecc_errors=None, untold={"ecc_errors": "Insufficient Permissions"}), check="sound: memory errors before the run", named=(G,), verdict="INCOMPLETE"),
    Fault(what="NVML does not answer at all", spoil=instead("before", {"skipped": "NVML says 'Driver Not Loaded'"}), check="before: runs", named=(G,), verdict="INCOMPLETE"),
    Fault(what="heat and slowdown before the run", spoil=reading(temperature_celsius=93, throttle_reasons=["thermal_slowdown"]), check="health: throttling", named=(G,), verdict="INCOMPLETE"),
    # Compute
    Fault(what="one wrong element of a product", spoil=of_one(lambda record: record.results["compute"]["products"]["bfloat16"].update(wrong_rows=[17])), check="product bfloat16: result", named=(G,)),
    Fault(what="a product that differs when repeated", spoil=of_one(lambda record: record.results["compute"]["products"]["bfloat16"].update(differing_repeats=1)), check="product bfloat16: result", named=(G,)),
    Fault(what="one of eight GPUs 24 % slow", spoil=of_one(product(1.24)), check="product bfloat16: time against peers", named=(G,)),
    Fault(what="one GPU four times as slow", spoil=of_one(product(4.0)), check="product bfloat16: time against peers", named=(G,), also=("product bfloat16: rate against the data sheet",)),
    Fault(what="all GPUs at 36 % of the data sheet", spoil=every(product(690 / (0.36 * 989))), check="product bfloat16: rate against the data sheet", named=all_of()),
    Fault(what="a model without a published rate", spoil=every(unknown_model), check="product bfloat16: rate against the data sheet", named=all_of(), verdict="INCOMPLETE"),
    Fault(what="CUDA: an illegal memory access", spoil=instead("compute", {"error": "AcceleratorError: CUDA error: an illegal memory access"}), check="compute: runs", named=(G,)),
    Fault(what="one bit of memory flips", spoil=stage("memory", wrong={"ones": 1}, first_byte={"ones": 4096}), check="memory: patterns", named=(G,)),
    Fault(what="another program uses half of the memory", spoil=stage("memory", tested_bytes=int(40e9)), check="memory: patterns", named=(G,), verdict="INCOMPLETE"),
    Fault(what="a gradient wrong before the all-reduce", spoil=stage("gradients", deviation=0.4), check="gradient: before the all-reduce", named=(G,)),
    Fault(what="a gradient of NaN", spoil=stage("gradients", deviation=float("nan")), check="gradient: before the all-reduce", named=(G,)),
    Fault(what="copies to one GPU at a quarter of the rate", spoil=stage("copies", seconds={"to_device": 20e-3, "to_host": 5e-3}), check="copy: host to device", named=(G,)),
    Fault(what="copies from every GPU at half of PCIe's rate", spoil=every(lambda record: record.results["copies"].update(seconds={"to_device": 5e-3, "to_host": 268e6 / 28e9})), check="copy: device to host", named=all_of()),
    Fault(what="--thorough: slows down because of heat", spoil=load(throttle_reasons=["hardware_thermal_slowdown"]), check="load: throttling", named=(G,)),
    Fault(what="--thorough: above the board's temperature", spoil=load(celsius=96), check="load: temperature", named=(G,)),
    Fault(what="--thorough: a fifth slower once it is warm", spoil=load(products_per_second=2000.0), check="load: pace over time", named=(G,)),
    Fault(what="--thorough: one product wrong in ten minutes", spoil=wrong_once, check="load: results", named=(G,)),
    Fault(what="every fifth second one GPU is half as fast", spoil=pace("products", 0.2, 2), check="steadiness: products", named=(G,)),
    Fault(what="one GPU's pace varies more than the others'", spoil=pace("products", 0.07, 2), check="steadiness: products", named=(G,), verdict="INCOMPLETE"),
    Fault(what="copies to the host that stall now and then", spoil=pace("to_host", 0.2, 4), check="steadiness: copies to host", named=(G,)),
    Fault(what="a tenth of the copies to the GPU takes three times as long", spoil=pace("to_device", 0.1, 3), check="steadiness: copies to device", named=(G,), verdict="INCOMPLETE"),
    Fault(what="--thorough: half the pace in every fourth sample", spoil=fitful, check="steadiness: load", named=(G,)),
    # Communication
    Fault(what="bursts of slow small messages", spoil=storms(0.3, 4), nodes=4, check="steadiness: small messages, 1024 bytes", named=("all ranks",)),
    Fault(what="one small message of twenty takes five times as long", spoil=storms(0.05, 5), nodes=4, check="steadiness: small messages, 1024 bytes", named=("all ranks",), verdict="INCOMPLETE"),
    Fault(what="every fifth large message takes three times as long", spoil=every(stalls), nodes=4, check="steadiness: large messages", named=("all ranks",), verdict="INCOMPLETE"),
    *(Fault(what=f"one wrong element of {operation}", spoil=element(operation), check=f"{operation}: result", named=(G,)) for operation in ("all_gather", "all_reduce", "broadcast", "reduce_scatter", "point_to_point")),
    Fault(what="all_reduce at 27 GB/s where there is NVLink", spoil=message("all_reduce", rate=8e9), check="all_reduce: bus bandwidth", named=("all ranks",)),
    Fault(what="0.1 GB/s between nodes", spoil=message("all_reduce", rate=0.1e9), nodes=4, check="all_reduce: bus bandwidth", named=("all ranks",)),
    Fault(what="1 KiB takes 3 ms inside a node", spoil=message("all_reduce", small_seconds=3e-3), check="all_reduce: latency", named=("all ranks",)),
    Fault(what="all_gather below the file of --expect", spoil=lambda records: None, expect="[bus_gigabytes_per_second]\nall_gather = 400", check="all_gather: bus bandwidth", named=("all ranks",)),
    Fault(what="one slow link of the ring", spoil=slow_ring, check="point_to_point: link against the others", named=(f"GPU 2 (rank 2, node17) to {G}",), also=("point_to_point: bus bandwidth",)),
    Fault(what="a slow link between two GPUs", spoil=pairs(lambda a, b: {a.rank, b.rank} == {1, SICK}), check="pairs: NVLink", named=(f"GPU 1 (rank 1, node17) and {G}",)),
    Fault(what="a GPU that is slow in exchanges with all others", spoil=pairs(lambda a, b: SICK in (a.rank, b.rank)), check="pairs: NVLink", named=(G,)),
    Fault(what="a node that is slow in exchanges with all others", spoil=pairs(lambda a, b: (a.node == "node1") != (b.node == "node1")), nodes=4, check="pairs: between nodes", named=IN_NODE1),
    Fault(what="an adapter that is slow in exchanges with all others", spoil=pairs(lambda a, b: a.node != b.node and SICK in (a.rank, b.rank)), nodes=4, check="pairs: between nodes", named=(N,)),
    Fault(what="a slow link between two nodes' GPUs", spoil=pairs(lambda a, b: {a.rank, b.rank} == {SICK, 6}), nodes=4, check="pairs: between nodes", named=(f"{N} and GPU 0 (rank 6, node3)",)),
    Fault(what="wrong data between two GPUs", spoil=pair_data, check="pairs: data", named=(f"rank 0 to {G}",)),
    # Ports
    Fault(what="a port that is down", spoil=node1(sound.ports(up=False)), nodes=4, check="network: port mlx5_0/1", named=IN_NODE1),
    Fault(what="a missing port", spoil=node1(sound.ports()[1:]), nodes=4, check="network: port mlx5_0/1", named=IN_NODE1),
    Fault(what="a port at half the rate", spoil=node1(sound.ports(rate_gigabits=200.0)), nodes=4, check="network: port mlx5_0/1", named=IN_NODE1),
    Fault(what="a link that flaps while the test runs", spoil=node1(None, after=grown(link_downed=2)), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1),
    Fault(what="a link that had to recover from errors", spoil=node1(None, after=grown(link_error_recovery=1)), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1),
    Fault(what="50 symbol errors", spoil=node1(None, after=grown(symbol_error=50)), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1),
    Fault(what="a port that disappears while the test runs", spoil=node1(None, after=sound.ports()[1:]), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1),
    Fault(what="a node without GPUDirect", spoil=node1(None, peer_memory=False), nodes=4, check="network: GPUDirect", named=IN_NODE1),
    Fault(what="three receive errors", spoil=node1(None, after=grown(port_rcv_errors=3)), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1, verdict="INCOMPLETE"),
    Fault(what="a node whose ports cannot be read", spoil=node1([]), nodes=4, check="network: ports", named=IN_NODE1, verdict="INCOMPLETE"),
    Fault(what="fewer ports than the file of --expect says", spoil=node1(sound.ports(up=False)), nodes=4, expect="[network]\nports = 8", check="network: expected ports", named=IN_NODE1, also=("network: port mlx5_0/1",)),
    # Training
    Fault(what="a loss of NaN on one rank", spoil=nan, check="training: losses are numbers", named=(G,), also=("training: loss falls",)),
    Fault(what="a loss that does not fall", spoil=every(no_fall), check="training: loss falls", named=("all ranks",)),
    Fault(what="one of eight replicas differs", spoil=replicas, check="training: replicas are equal", named=(G,)),
    Fault(what="half of the replicas differ from the others", spoil=half_of_replicas, check="training: replicas are equal", named=all_of()),
    Fault(what="a straggler in the forward pass", spoil=of_one(epochs(own_seconds=[0.014] * 4)), check="training: pace", named=(G,)),
    Fault(what="a straggler in the backward pass only", spoil=stage("training", alone_seconds=[0.042] * 5), check="training: pace of forward and backward", named=(G,)),
    Fault(what="a host that stops its training now and then", spoil=stopped_steps, check="steadiness: training steps", named=(G,)),
    Fault(what="out of memory", spoil=instead("training", {"error": "OutOfMemoryError: CUDA out of memory"}), check="training: runs", named=(G,)),
    # What the run caused
    Fault(what="too hot after the run", spoil=reading(both=False, temperature_celsius=95), check="health: temperature", named=(G,)),
    Fault(what="slows down because of heat", spoil=reading(both=False, throttle_reasons=["hardware_thermal_slowdown"]), check="health: throttling", named=(G,)),
    Fault(what="power brake", spoil=reading(both=False, throttle_reasons=["power_brake"]), check="health: throttling", named=(G,)),
    Fault(what="a new uncorrected memory error", spoil=reading(both=False, ecc_errors=1), check="health: uncorrected memory errors", named=(G,)),
    Fault(what="a new XID", spoil=reading(both=False, xid_errors=1), check="health: XID errors", named=(G,)),
    Fault(what="memory full at the end", spoil=reading(both=False, memory_used_bytes=80_000 * sound.MIB), check="health: memory", named=(G,)),
    Fault(what="PCIe lanes lost while the test runs", spoil=reading(both=False, pcie_width=8), check="health: PCIe link", named=(G,)),
    Fault(what="an NVLink lost while the test runs", spoil=reading(both=False, nvlinks_up=17), check="health: NVLink", named=(G,)),
    Fault(what="a GPU that fell off the bus", spoil=instead("after", {"reading": {"up": False}}), check="health: GPU is still there", named=(G,)),
    # Processes and the comparison
    Fault(what="a rank killed", spoil=ended("died", "killed by SIGKILL"), check="run: process", named=(G,)),
    Fault(what="a rank that hangs behind the others", spoil=ended("hung", "no end of 'collectives' within 600 s"), check="run: process", named=(G,)),
    Fault(what="all ranks hang at the same place", spoil=all_hang, check="run: process", named=all_of()),
    Fault(what="a rank that reports nothing", spoil=ended("lost", "its processes are gone"), check="run: process", named=(f"rank {SICK}, node17",)),
    Fault(what="a node that reports nothing", spoil=node_lost, nodes=4, check="run: node", named=IN_NODE1, also=("run: process",)),
    Fault(what="a rank that leaves a collective out", spoil=skips, check="run: process", named=(G,)),
    Fault(what="13 % slower than the baseline, everywhere", spoil=every(product(1.15)), compared=True, check="baseline: TFLOPS of product bfloat16", named=tuple(f"rank {rank}" for rank in range(8))),
    Fault(what="memory 15 % slower than the baseline", spoil=every(slow_memory(0.85)), compared=True, check="baseline: bandwidth of the GPU's memory, copy (bytes/s)", named=tuple(f"rank {rank}" for rank in range(8)), also=("baseline: bandwidth of the GPU's memory, triad (bytes/s)",)),
    Fault(what="a figure of the baseline is missing", spoil=no_figure, compared=True, check="baseline: measured again", named=("all ranks",), verdict="INCOMPLETE"),
    # Added later, from other tools
    Fault(what="ECC off on one GPU", spoil=reading(ecc_mode=[0, 0]), check="board: ECC mode", named=(G,), later=True),
    Fault(what="ECC off on every GPU", spoil=every(lambda record: reading(rank=0, ecc_mode=[0, 0])([record])), check="board: ECC mode", named=all_of(), verdict="INCOMPLETE", later=True),
    Fault(what="MIG on", spoil=reading(mig_mode=[1, 1]), check="board: MIG", named=(G,), verdict="INCOMPLETE", later=True),
    Fault(what="memory pages that wait to be retired", spoil=reading(retired_pages_pending=1), check="board: retired pages", named=(G,), later=True),
    Fault(what="a corrupted InfoROM", spoil=reading(inforom_valid=False), check="board: InfoROM", named=(G,), later=True),
    Fault(what="a flood of corrected NVLink errors", spoil=reading(both=False, nvlink_errors=5000), check="board: NVLink errors", named=(G,), later=True),
    Fault(what="a flood of PCIe replays", spoil=reading(both=False, pcie_replays=5000), check="board: PCIe replays", named=(G,), later=True),
    Fault(what="a flood of corrected memory errors", spoil=reading(both=False, ecc_corrected=50_000), check="board: corrected memory errors", named=(G,), later=True),
    Fault(what="clocks that are set to fixed values", spoil=reading(both=False, throttle_reasons=["application_clocks"]), check="board: clocks under load", named=(G,), verdict="INCOMPLETE", later=True),
    Fault(what="a clock locked at 510 MHz", spoil=reading(both=False, sm_clock_hertz=510e6), check="board: clocks under load", named=(G,), verdict="INCOMPLETE", later=True),
    Fault(what="retransmissions on RoCE", spoil=node1(sound.ports(counters={"out_of_sequence": 0}), after=sound.ports(counters={"out_of_sequence": 900})), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1, verdict="INCOMPLETE", later=True),
    Fault(what="an Ethernet carrier that went down", spoil=node1(sound.ports(counters={"carrier_down_count": 4}), after=sound.ports(counters={"carrier_down_count": 5})), nodes=4, check="network: errors of mlx5_0/1", named=IN_NODE1, later=True),
)  # fmt: skip


def machine(fault: Fault) -> list[Record]:
    """The sound machine of a fault."""
    return sound.nodes(fault.nodes, per_node=2) if fault.nodes else sound.records(8)


def judged(fault: Fault, *, spoiled: bool = True) -> dict[str, Any]:
    """The report of the machine with the fault, or of the same without it."""
    records = machine(fault)
    words = ["--thorough", *fault.words] if fault.what.startswith("--thorough") else list(fault.words)
    standards = report.Standards()
    with tempfile.TemporaryDirectory() as folder:
        if fault.expect:
            path = Path(folder) / "cluster.toml"
            path.write_text(fault.expect)
            standards = report.Standards(expected=expectations.read(path))
        if fault.compared:
            path = Path(folder) / "earlier.json"
            path.write_text(json.dumps(sound.report(machine(fault))))
            standards = report.Standards(earlier=baseline.read(path, sound.options()))
    if spoiled:
        fault.spoil(records)
    return sound.report(records, *words, standards=standards)
