"""Broken and sound clusters by somebody who had not read the judge, each with its verdict before any was judged.

Of the 35 broken ones one passed at first: a sensor of temperature that stood still. None of the sound ones failed; those
left out are of models without a data sheet, which stay unverified. In brackets: who reported it. "ogkm" is
NVIDIA/open-gpu-kernel-modules, "azure" Azure/azurehpc-health-checks, "marin" marin-community/marin.
"""

from collections.abc import Callable

from cluster.acceptance.records import Record
from tests.cluster.faults.changes import (
    copied,
    host,
    hosted,
    in_load,
    memory,
    messages,
    on,
    paced,
    printed,
    reading_of_load,
    result,
    sometimes,
    took,
    variables,
)
from tests.cluster.faults.issues import counted, state
from tests.cluster.faults.reported import (
    A30,
    A100,
    A100_PCIE,
    B200,
    G3,
    GB200,
    H100,
    H200,
    L40S,
    MIB,
    RTX4090,
    TWO_SOCKETS,
    V100,
    Change,
    Story,
    both,
    bridged,
    ports,
    small,
)
from tests.cluster.faults.visitor_changes import (
    A30_JOINED,
    A40,
    A100_40,
    A800,
    A6000,
    B300,
    GB300,
    GH200_144,
    L40,
    V100_PCIE,
    G,
    adapters,
    asleep,
    away,
    dust,
    ended,
    gone,
    learnt,
    lottery,
    misplaced,
    named_ports,
    paired,
    sagging,
    set_back,
    slow_bus,
    spoilt,
    stale_gradients,
    steps,
    together,
    unlike_bits,
    versions,
    weak,
)

GIB = 2**30
BROKEN: list[Story] = []
HEALTHY: list[Story] = []


def broken(
    what: str, records: Callable[[], list[Record]], change: Change, named: str, field: str, verdict: str = "FAIL"
) -> None:
    """`field`, the part of the record at fault, and `verdict` are for the reader."""
    del field, verdict
    BROKEN.append(Story(what=what, records=records, change=change, named=named))


def healthy(
    what: str, records: Callable[[], list[Record]], change: Change = lambda records: None, expect: str = ""
) -> None:
    HEALTHY.append(Story(what=what, records=records, change=change, expect=expect))


# --- Broken --------------------------------------------------------------------------------------------------------

broken(
    "sums that NVLink SHARP gets wrong above some size; everything else is right (nccl-tests 167)",
    lambda: hosted(H100),
    both(
        spoilt(("all_reduce", "reduce_scatter"), MIB, 1_048_576),
        learnt([2.31, 2.36, 2.33, 2.35], [2.34, 2.38, 2.35, 2.36]),
    ),
    "rank",
    "collectives.measurements.wrong",
)
broken(
    "peer copies that the IOMMU translates to the wrong place, between two root complexes (rapidsmpf 1128)",
    lambda: hosted(A100_PCIE, gpus=2, topology=lambda a, b: "one NUMA node" if a == b else "between NUMA nodes"),
    both(
        state(nvlinks_up=0),
        misplaced,
        learnt([2.3, 2.5, 2.9, 2.7], [2.8, 3.0, 2.9, 3.1]),
        unlike_bits([1]),
    ),
    "rank",
    "pairs.met.wrong",
)
broken(
    "one multiprocessor of one board that gets products in bfloat16 wrong, now and then (Meta, silent data corruption)",
    lambda: hosted(H100),
    both(
        lambda r: r[3].results["compute"]["products"]["bfloat16"].update(wrong_rows=[5123, 5131], differing_repeats=3),
        result("gradients", [3], deviation=6e-3),
    ),
    G3,
    "compute.products.bfloat16",
)
broken(
    "parameters of one of 16 ranks that are not those of the others at the end (physics: a bit that flips in a cache)",
    lambda: hosted(H200, nodes=2),
    unlike_bits([11]),
    "rank 11",
    "training.sha256",
)
broken(
    "ranks of one node of four that the launcher binds to the other socket (azurehpc 597)",
    lambda: hosted(H100, nodes=4, topology=TWO_SOCKETS),
    both(copied(1.62, range(16, 24)), weak(range(16, 24), 1.19, products=False), lambda r: small(r, 41e-6)),
    "node2",
    "copies.seconds",
)
broken(
    "a retimer that trains one board's slot at generation 3 of 5",
    lambda: hosted(H100),
    both(state([3], pcie_generation=3), copied(4.05, [3])),
    G3,
    "before.reading.pcie_generation",
)
broken(
    "personalised exchanges between nodes at 40 %, all else at its line: far adapters (nccl-tests 152)",
    lambda: hosted(A100, nodes=2, port=200),
    both(slow_bus(2.5, "all_to_all"), away(2.3, lambda a, b: a.local_rank != b.local_rank)),
    "all ranks",
    "collectives.measurements.all_to_all",
)
broken(
    "a fabric without adaptive routing: flows that collide, differently each time",
    lambda: hosted(H100, nodes=4),
    both(sometimes(2.1, of=5, slow=2), slow_bus(1.35), away(1.9, lambda a, b: (a.rank + b.rank) % 5 < 2)),
    "all ranks",
    "collectives.measurements",
)
broken(
    "13 GB/s for each connection of NCCL, while ib_write_bw reaches 392 Gbit/s (nccl 2409)",
    lambda: hosted(H100, nodes=2),
    both(slow_bus(3.55), away(3.4), adapters(392.0, lambda record, row: False)),
    "all ranks",
    "collectives.measurements",
)
broken(
    "a transceiver with a dirty fibre: 181,000 symbol errors in a minute, two recoveries, a port at three quarters",
    lambda: hosted(H100, nodes=4),
    both(
        adapters(291.0, lambda record, row: record.node == "node2" and row["adapter"] == "mlx5_6/1"),
        counted("node2", 6, symbol_error=181_402, link_error_recovery=2, port_rcv_errors=911),
        slow_bus(1.33),
        away(1.35, lambda a, b: 22 in (a.rank, b.rank)),
    ),
    "node2",
    "network_after.ports.counters",
)
broken(
    "64 KiB that the unit of Slurm's daemon lets a job lock: no memory for RDMA on one node",
    lambda: hosted(H100, nodes=2),
    both(
        host("node1", locked_memory_bytes=65536),
        adapters(None, lambda record, row: record.node == "node1", "Couldn't allocate MR"),
        ended(
            dict.fromkeys(range(8, 16), ("died", "exit code 1")),
            "collectives",
            "all_gather of 1.0 KiB",
            log="NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        ),
    ),
    "rank 8",
    "presence.host.locked_memory_bytes",
)
broken(
    "processors of one node at 800 MHz: a governor that saves power",
    lambda: hosted(H100, nodes=2),
    both(host("node1", governor="powersave"), weak(range(8, 16), 1.42, products=False), lambda r: small(r, 62e-6)),
    "node1",
    "presence.host.governor",
)
broken(
    "64 MiB of shared memory, as Docker gives it: a rank gets a bus error in the first large message",
    lambda: hosted(L40S, gpus=4),
    both(
        host(shared_memory_bytes=64 * MIB),
        ended({2: ("died", "killed by SIGBUS")}, "collectives", "all_gather of 256.0 MiB"),
    ),
    "rank 2",
    "presence.host.shared_memory_bytes",
)
broken(
    "a bridge that makes contact with three of four links; minutes until CUDA is there (nccl 557)",
    lambda: hosted(A6000, gpus=2),
    both(state(nvlinks_up=3), slow_bus(1.36), paired(1.36), took("presence", 112.0)),
    "GPU",
    "before.reading.nvlinks_up",
)
broken(
    "a power sensor that froze at 588 of 450 W: the board stays at 210 MHz (ogkm 1236)",
    lambda: hosted(RTX4090, gpus=2),
    dust,
    G(1),
    "after.reading.power_watts",
)
broken(
    "a node that swaps: the former job left a file system in memory",
    lambda: hosted(A100, nodes=2, port=200),
    both(
        host("node1", swapped_bytes=41 * GIB, memory_available_bytes=3 * GIB),
        steps(64, 8, 9.0, range(8, 16)),
        result("training", range(8, 16), alone_seconds=[0.012, 0.012, 0.013, 0.104, 0.012]),
    ),
    "node1",
    "presence.host.swapped_bytes",
)
broken(
    "two ranks that got the same GPU from the device plugin", lambda: hosted(H100), together(2, 3), G3, "presence.uuid"
)
broken(
    "two uncorrectable errors of one board's memory in the middle of the run, contained (XID 94)",
    lambda: hosted(H100),
    state([6], after=True, ecc_errors=2, xid_errors=1, remapped_rows=[0, 1, 1, 0], ecc_lifetime=2),
    G(6),
    "after.reading.ecc_errors",
)
broken(
    "errors of a board's SRAM that parity found, before the run",
    lambda: hosted(H200),
    state([3], sram_errors=[7, 1], ecc_lifetime=7),
    G3,
    "before.reading.sram_errors",
)
broken(
    "a board whose InfoROM got corrupt when the power failed",
    lambda: hosted(A100),
    state([3], inforom_valid=False),
    G3,
    "before.reading.inforom_valid",
)
broken(
    "a row that the board had no spare for: the remapping failed",
    lambda: hosted(A100, gpus=4),
    state([3], remapped_rows=[0, 3, 0, 1], ecc_lifetime=5),
    G3,
    "before.reading.remapped_rows",
)
broken(
    "a link of one board that repeats packets all the time: 45,000 errors in a minute, XID 74 yesterday",
    lambda: hosted(B200),
    both(
        state([6], xids_before=[74]),
        state([6], after=True, nvlink_errors=45_310),
        slow_bus(1.4),
        paired(1.5, lambda a, b: 6 in (a.rank, b.rank)),
    ),
    G(6),
    "after.reading.nvlink_errors",
)
broken(
    "a rack with four of eight paths of its switches down (nccl 2186)",
    lambda: hosted(GB200, gpus=4, adapters=4),
    both(
        state(
            fabric={
                "state": "completed",
                "status": 0,
                "clique": 1,
                "cluster": "ab" * 16,
                "degraded": True,
                "faults": [],
            }
        ),
        slow_bus(1.95),
        paired(1.95),
    ),
    "GPU",
    "before.reading.fabric",
)
broken(
    "a sensor of temperature that stands at 23 degrees in minutes at 690 W",
    lambda: hosted(H100),
    both(in_load(3, "celsius", 23), state([3], temperature_celsius=23)),
    G3,
    "load.series.celsius",
    "FAIL or INCOMPLETE",
)
broken(
    "a clock of one node that is set back by 39 minutes in the run",
    lambda: hosted(H100, nodes=2),
    set_back,
    "node1",
    "after.time",
    "FAIL or INCOMPLETE",
)
broken(
    "gradients that arrive late only when they overlap with work: nothing is learnt, the nodes differ",
    lambda: hosted(H100, nodes=2),
    stale_gradients,
    "rank",
    "training.epochs.losses",
)
broken(
    "four channels, left from an experiment with two jobs on a node (NCCL_MAX_NCHANNELS)",
    lambda: hosted(H200),
    both(variables(NCCL_MAX_NCHANNELS="4"), slow_bus(3.6), paired(3.1)),
    "all ranks",
    "collectives.measurements",
)
broken(
    "NVLink of a whole board stops: exchanges hang between two of eight (ogkm 1355, XID 145)",
    lambda: hosted(B300),
    ended({4: ("hung", ""), 5: ("hung", "")}, "collectives", "all_to_all of 64.0 MiB"),
    "rank 4",
    "collectives",
)
broken(
    "a power supply that trips when the load begins: no word from a node any more",
    lambda: hosted(H100, nodes=2),
    both(paced(0.95), gone(range(8, 16))),
    "rank 8",
    "ending",
)
broken(
    "an instruction that is illegal on one board only (marin 7956, XID 13 with no fault of the program)",
    lambda: hosted(GB200, nodes=2, gpus=4, line=14.9, adapters=4),
    ended(
        {3: ("died", "killed by SIGABRT")},
        "compute",
        "products in float16",
        log="torch.AcceleratorError: CUDA error: an illegal instruction was encountered",
    ),
    "rank 3",
    "compute",
)
broken(
    "adapters of 400 Gbit/s whose slots a setting of the BIOS keeps at generation 4, on all nodes",
    lambda: hosted(H100, nodes=2),
    both(
        lambda r: ports(r, None, range(8), pcie_generation=4),
        adapters(243.0, lambda record, row: True),
        slow_bus(1.58),
        away(1.58),
    ),
    "node",
    "network.ports.pcie_generation",
)
broken(
    "a regulator of one board that has lost a phase: a quarter of its products wait",
    lambda: hosted(H100),
    sagging,
    G(5),
    "steadiness.products",
)
broken(
    "two nodes of four with an older profile of power in their BIOS: 18 % slower, and nothing says why",
    lambda: hosted(H100, nodes=4),
    both(weak(range(16, 32), 1.18), state(range(16, 32), after=True, sm_clock_hertz=1665e6, power_watts=430.0)),
    "node2",
    "compute.products",
)
broken(
    "a stack of one board's memory that trains at a lower rate",
    lambda: hosted(B200),
    both(memory(0.72, 3), weak([3], 1.16, products=False)),
    G3,
    "bandwidth.rates",
)
broken(
    "processors that sleep deeply between messages: one of eight takes nine times as long",
    lambda: hosted(H100, nodes=2),
    both(messages(0.125, 9.0), asleep),
    "all ranks",
    "collectives.steady",
)

# --- Sound ---------------------------------------------------------------------------------------------------------

ECC = (
    "ecc_mode",
    "ecc_mode_default",
    "ecc_errors",
    "ecc_corrected",
    "ecc_lifetime",
    "remapped_rows",
    "sram_errors",
    "retired_pages_pending",
)
healthy("four A100 of 40 GB on a board without a switch", lambda: hosted(A100_40, gpus=4, pair=lambda a, b: 78))
healthy(
    "sixteen A100 of 40 GB behind switches, in a cloud without RDMA (a2-megagpu-16g)",
    lambda: hosted(A100_40, gpus=16, rdma=False, port=100),
)
healthy("eight A800 with eight links each", lambda: hosted(A800))
healthy("two A30 with a bridge", lambda: hosted(A30_JOINED, gpus=2))
healthy(
    "four A30, none with a bridge, on two sockets",
    lambda: hosted(A30, gpus=4, topology=TWO_SOCKETS),
    state(nvlinks=4, nvlinks_up=0),
)
healthy("four A40 with bridges in pairs", lambda: hosted(A40, gpus=4, pair=bridged(44, 9)))
healthy(
    "a server of AMD with 384 processors that booted ten minutes ago",
    lambda: hosted(H200),
    host(
        processors=384,
        processors_allowed=384.0,
        up_seconds=612.0,
        governor="schedutil",
        memory_bytes=3 * 2**40,
        memory_available_bytes=3 * 2**40 - 2**37,
    ),
)
healthy(
    "one B200 in a virtual machine of KVM",
    lambda: hosted(B200, gpus=1),
    host(clock_source="kvm-clock", processors=24, processors_allowed=24.0),
)
healthy("eight half nodes of H100", lambda: hosted(H100, nodes=8, gpus=4, adapters=4))
healthy("two trays of GB300", lambda: hosted(GB300, nodes=2, gpus=4, line=14.9, adapters=4))
healthy("two nodes of A100 with ports of 200 Gbit/s (HDR)", lambda: hosted(A100, nodes=2, port=200))
healthy("four V100 in slots of PCIe 3", lambda: hosted(V100_PCIE, gpus=4, rdma=False, port=25))
healthy(
    "eight L40 on two sockets",
    lambda: hosted(L40, topology=TWO_SOCKETS, pair=lambda a, b: 12 if (a < 4) == (b < 4) else 6),
)
healthy(
    "adapters of another maker: RoCE at 400 Gbit/s", lambda: hosted(H200, nodes=2), named_ports("bnxt_re", "Ethernet")
)
healthy(
    "bare metal with sixteen ports of 200 Gbit/s (BM.GPU.H100.8)",
    lambda: hosted(H100, nodes=2, port=200, adapters=16),
    both(slow_bus(0.51), away(0.51), named_ports("mlx5_", "Ethernet")),
)
healthy(
    "warm air: 47 degrees idle and 79 of 87 in the work",
    lambda: hosted(H100),
    both(state(temperature_celsius=47), state(after=True, temperature_celsius=79), reading_of_load(celsius=80)),
)
healthy(
    "eight boards of which the slowest is 4 % behind",
    lambda: hosted(H100),
    lottery(1.0, 1.01, 0.995, 1.02, 1.005, 1.035, 1.0, 1.015),
)
healthy(
    "minutes of load at the limit of 1,000 W, at 1.6 GHz",
    lambda: hosted(B200),
    both(
        paced(0.88),
        on(
            None,
            lambda one: [
                sample.update(watts=992.0, sm_clock_hertz=1605e6, celsius=68)
                for sample in one.results["load"]["series"]
            ],
        ),
        state(after=True, power_watts=640.0),
    ),
)
healthy("one corrected error during the run", lambda: hosted(H100), state([5], after=True, ecc_corrected=4))
healthy("eight nodes with one H100 and one port each", lambda: hosted(H100, nodes=8, gpus=1, adapters=1))
healthy("a GH200 with 144 GB, whose memory is quicker than that of the first GH200", lambda: hosted(GH200_144, gpus=1))
healthy(
    "a stack of the year before: PyTorch 2.6, CUDA 12.4, driver 550, Enterprise Linux 8",
    lambda: hosted(V100, port=100, adapters=4, pair=lambda a, b: (46, 23, 8)[(a + b) % 3]),
    versions("2.6.0+cu124", "12.4", (2, 21, 5), "550.144.03", "4.18.0-553.el8_10.x86_64"),
)
healthy(
    "NCCL that tells all that it does, and one connection for kernels, as Megatron wants it",
    lambda: hosted(H100, nodes=2),
    both(
        variables(NCCL_DEBUG="INFO", CUDA_DEVICE_MAX_CONNECTIONS="1"),
        printed(
            "node1:4411:4502 [3] NCCL INFO Channel 00/16 : 0 1 2 3 4 5 6 7\nnode1:4411:4502 [3] NCCL INFO Connected all rings\n"
        ),
    ),
)
