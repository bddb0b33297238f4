"""States that an engineer wrote who had seen neither the checks nor the other lists; each leaves its traces in many fields.

None of the 35 broken ones passed silently at first, and none of the 30 sound ones failed. Two passed with a word in the
banner: errors of the host's memory, and one node that reads its data for minutes. Four sound ones were incomplete: a
model without a data sheet here, which needs --expect, and three whose records no worker writes (an L4 that draws 70 W
without work, counters that are not read, counters that two ports of eight have).
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster.acceptance.checks.collectives import BUS_FACTORS
from tests.cluster.faults.changes import (
    before,
    host,
    hosted,
    memory,
    messages,
    present,
    result,
    variables,
)
from tests.cluster.faults.issues import state
from tests.cluster.faults.reported import (
    A100,
    B200,
    GB200,
    GH200,
    H100,
    H100_PCIE,
    L40S,
    MIB,
    RTX4090,
    T4,
    TWO_SOCKETS,
    Change,
    Story,
    both,
    bridged,
    large,
    meetings,
    ports,
    read,
    slower,
    small,
)  # fmt: skip
from tests.cluster.faults.traces import (
    B300,
    DGX2,
    GIB,
    H20,
    H200_NVL,
    H800,
    L4,
    RTX_PRO,
    across,
    adapters_of,
    all_ports,
    apart_on_rails,
    between,
    cached,
    clogged,
    cool,
    copy_time,
    counters,
    dual,
    each_of,
    fabric,
    geforce,
    hot_rear,
    later,
    noisy,
    of_losses,
    once,
    one_gone,
    port,
    ranks_of,
    rare,
    renumbered,
    sampled,
    sheet,
    tails,
    took,
    train_rate,
    under_load,
    uneven,
    visible,
    warmed_up,
    with_rank,
    with_sizes,
)

RTX_PRO_EXPECTED = "[compute_tflops]\nbfloat16 = 350\nfloat16 = 350\n[gpu]\nmemory_gigabytes_per_second = 1400"


@dataclass(frozen=True, kw_only=True)
class Trial(Story):
    """A story, and where its idea comes from."""

    source: str


BROKEN: tuple[Trial, ...] = (
    Trial(
        what="one of four A100 capped at 240 of 400 W by the chassis", source="l4rz/reverse-engineering-dell-idrac issue 3",
        records=lambda: hosted(A100, gpus=4, pair=lambda a, b: 78), named="rank 2",
        change=both(
            sheet(400.0, 1410, 330.0), lambda r: slower(r, [2], 1.3, training=False), lambda r: slower(r, [2], 1.15, products=False), train_rate(1.12),
            state([2], after=True, power_watts=238.0, sm_clock_hertz=1110e6, throttle_reasons=["power_cap"], temperature_celsius=48),
            under_load(sampled(1.0, 392.0, 1380, 60)), under_load(sampled(0.74, 240.0, 1050, 50), [2]),
        ),
    ),
    Trial(
        what="a power supply that gives way after half a minute of load, on one node", source="gpud pull 330 (failing PSU); Llama 3 report (power supply)",
        records=lambda: hosted(H100, nodes=2), named="node1",
        change=both(
            under_load(sampled(0.66, 430.0, 1230, 52, begins=0.25), ranks_of(1)), lambda r: slower(r, ranks_of(1), 1.15, products=False), train_rate(1.12),
            state(ranks_of(1), after=True, power_watts=430.0, sm_clock_hertz=1400e6, throttle_reasons=["power_cap"]),
        ),
    ),
    Trial(
        what="a cooling loop with half of its flow", source="introl.com incident playbooks: liquid cooling leads incidents",
        records=lambda: hosted(B200, nodes=2), named="node0",
        change=both(
            under_load(clogged, ranks_of(0)), under_load(cool, ranks_of(1)), lambda r: slower(r, ranks_of(0), 1.15, products=False), train_rate(1.12),
            state(ranks_of(0), after=True, temperature_celsius=80, sm_clock_hertz=1500e6, throttle_reasons=["power_cap"], power_watts=930.0),
        ),
    ),
    Trial(
        what="silent corruption that only convolutions meet: a gradient 7 % off", source="Llama 3 report: silent data corruption; llama.cpp issue 16945",
        records=lambda: hosted(H100), named="rank 6",
        change=result("gradients", [6], deviation=0.07, parameter="layer3.1.conv2.weight"),
    ),
    Trial(
        what="a board that will be sliced at the next reset: MIG is pending", source="NVIDIA/k8s-device-plugin, gpu-operator mig-manager",
        records=lambda: hosted(A100), named="rank 3",change=state([3], mig_mode=[0, 1]),
    ),
    Trial(
        what="memory that degrades: a twelfth row is to be remapped during the run", source="wtdcode/vllm-backport issue 62",
        records=lambda: hosted(A100, gpus=4, pair=lambda a, b: 78), named="rank 2",
        change=both(
            state([2], remapped_rows=[0, 11, 0, 0], xids_before=[63, 63]),
            state([2], after=True, remapped_rows=[0, 12, 1, 0], ecc_errors=1, ecc_lifetime=1, ecc_corrected=9, xid_errors=1),
        ),
    ),
    Trial(
        what="a replaced board that is another make: 500 W and an older VBIOS", source="SemiAnalysis ClusterMAX on mixed fleets; physics",
        records=lambda: hosted(H100), named="rank 5",
        change=both(
            state([5], vbios="96.00.30.00.04", power_limit_watts=500.0, power_limit_default_watts=500.0), train_rate(1.1),
            state([5], after=True, power_watts=470.0, sm_clock_hertz=1590e6, throttle_reasons=["power_cap"]),
            lambda r: slower(r, [5], 1.24, training=False), lambda r: slower(r, [5], 1.12, products=False),
        ),
    ),
    Trial(
        what="another NCCL on one of two nodes, from a module's library path", source="NVIDIA/nccl issue 588 and others (versions mixed by LD_LIBRARY_PATH)",
        records=lambda: hosted(H100, nodes=2), named="node1",change=present(ranks_of(1), nccl=[2, 18, 3]),
    ),
    Trial(
        what="a T4 that another pod uses at the same time: time slices", source="NVIDIA/k8s-device-plugin issues 628 and 461",
        records=lambda: hosted(T4, gpus=1), named="rank 0",
        change=both(
            sheet(70.0, 1590, 69.0), lambda r: slower(r, [0], 2.1), memory(0.5, 0), copy_time(1.9, [0]), train_rate(2.0),
            lambda r: r[0].results["before"]["reading"].update(utilization_ratio=1.0, memory_busy_ratio=0.5, memory_used_bytes=7.5 * GIB, power_watts=68.0,
                sm_clock_hertz=1100e6, temperature_celsius=71, throttle_reasons=["power_cap"]),
            state([0], after=True, memory_used_bytes=11.5 * GIB, utilization_ratio=1.0, throttle_reasons=["power_cap"], sm_clock_hertz=1100e6, temperature_celsius=74),
            result("memory", tested_bytes=int(0.9 * 7.2 * GIB)),
        ),
    ),
    Trial(
        what="copies to the boards of one socket at 11 GB/s, back at full rate", source="NVIDIA/nvbandwidth issue 53",
        records=lambda: hosted(A100, topology=TWO_SOCKETS), named="rank 4",change=copy_time(2.3, range(4, 8), "to_device"),
    ),
    Trial(
        what="a node whose kernel has given up its time stamp counter: hpet", source="public reports of TSC marked unstable; gettimeofday then is a slow read",
        records=lambda: hosted(H100, nodes=2), named="node1",
        change=both(host("node1", clock_source="hpet"), lambda r: slower(r, ranks_of(1), 1.35, products=False), train_rate(1.3), lambda r: small(r, 75e-6)),
    ),
    Trial(
        what="one processor for each rank: Slurm's default of --cpus-per-task", source="Slurm documentation; dask-cuda issue 1358",
        records=lambda: hosted(H100, nodes=2), named="all ranks",
        change=both(host(processors_allowed=1.0), messages(0.25, 6.0), lambda r: large(r, 1.7), lambda r: meetings(r, 1.7, across), took("data", 22.0, range(16)),
            later(19.0), train_rate(1.5), lambda r: slower(r, range(16), 1.5, products=False)),
    ),
    Trial(
        what="a memory module with 18,000 corrected errors in the host", source="Meta's Llama 3 report: system memory; edac",
        records=lambda: hosted(H100, nodes=2), named="node1",change=host("node1", memory_errors=[18_234, 0]),
    ),
    Trial(
        what="two NVLinks that drop out while the test runs", source="NVIDIA/srt-slurm pull 307; Xid 74",
        records=lambda: hosted(H100), named="rank 3",
        change=state([3], after=True, nvlinks_up=16, nvlink_errors=214, xid_errors=1),
    ),
    Trial(
        what="a riser that replays a sixth of its packets", source="DCGM field PCIE_REPLAY_COUNTER; Azure check_gpu_bw",
        records=lambda: hosted(L40S, topology=TWO_SOCKETS), named="rank 6",
        change=both(
            state([6], pcie_replays=12), state([6], after=True, pcie_replays=48_112), copy_time(1.35, [6]),
            lambda r: meetings(r, 1.35, with_rank(6)), lambda r: large(r, 1.35),
        ),
    ),
    Trial(
        what="the four links between two of four A100 without a switch are gone", source="Azure/azurehpc-health-checks issue 54; topology of HGX A100 with four",
        records=lambda: hosted(A100, gpus=4, pair=lambda a, b: 78), named="GPU 1",
        change=both(lambda r: read(r, [1, 2], nvlinks_up=8), lambda r: meetings(r, 4.3, between(1, 2)), lambda r: large(r, 3.0)),
    ),
    Trial(
        what="Ethernet without flow control: packets get lost in collectives", source="NVIDIA/nccl issues 378 and 306",
        records=lambda: hosted(H100, nodes=2), named="all ranks",
        change=both(
            lambda r: ports(r, None, range(8), kind="Ethernet"), uneven((1.2, 3.5, 1.6, 9.0, 2.2)), lambda r: meetings(r, 2.5, across), train_rate(1.4),
            counters(None, range(8), {"out_of_sequence": 120, "packet_seq_err": 80, "local_ack_timeout_err": 2, "np_cnp_sent": 0},
                {"out_of_sequence": 41_870, "packet_seq_err": 39_002, "local_ack_timeout_err": 655, "np_cnp_sent": 0}),
        ),
    ),
    Trial(
        what="a spine with a quarter of its cables: traffic between rails at a third", source="NVIDIA/nccl issues 2193, 836 and 1531",
        records=lambda: hosted(H100, nodes=4), named="all ranks",
        change=both(variables(NCCL_PXN_DISABLE="1"), lambda r: large(r, 3.2, "all_to_all", "point_to_point"), lambda r: meetings(r, 3.2, apart_on_rails)),
    ),
    Trial(
        what="a link that goes down and comes back while all wait", source="Crusoe GTC 2025: recoverable InfiniBand faults; link flaps",
        records=lambda: hosted(H100, nodes=2), named="node0",
        change=both(once("all_reduce", 2.1), counters("node0", [6], {"link_downed": 1, "link_error_recovery": 0}, {"link_downed": 2, "link_error_recovery": 3})),
    ),
    Trial(
        what="adapters of one node of four that read 128 bytes at a time", source="MaxReadReq guides; NVIDIA/nccl-tests issue 106 (one slow node)",
        records=lambda: hosted(H100, nodes=4), named="node2",
        change=both(adapters_of("node2", 235.0), lambda r: large(r, 1.65), lambda r: meetings(r, 1.65, lambda a, b: across(a, b) and "node2" in (a.node, b.node))),
    ),
    Trial(
        what="one of eight adapters, by a variable of the old cluster", source="NVIDIA/nccl issues 1591 and 1600",
        records=lambda: hosted(H100, nodes=2), named="all ranks",
        change=both(variables(NCCL_IB_HCA="mlx5_0"), lambda r: large(r, 8.0, *(name for name in BUS_FACTORS if name != "point_to_point")), lambda r: meetings(r, 8.0, across), train_rate(1.3)),
    ),
    Trial(
        what="CUDA_LAUNCH_BLOCKING in the image of one node", source="forum answers that leave it in Dockerfiles",
        records=lambda: hosted(H100, nodes=2), named="node1",
        change=both(variables(ranks_of(1), CUDA_LAUNCH_BLOCKING="1"), lambda r: slower(r, ranks_of(1), 1.45, products=False), train_rate(1.4)),
    ),
    Trial(
        what="no GPUDirect on any node: nvidia_peermem was not loaded after an upgrade", source="gpu-operator; NVIDIA/nccl issue 1676",
        records=lambda: hosted(H100, nodes=2), named="all ranks",
        change=both(each_of("network", [0, 8], lambda own: own.update(peer_memory=False)), each_of("network_after", [0, 8], lambda own: own.update(peer_memory=False)),
            lambda r: large(r, 2.3), lambda r: meetings(r, 2.3, across), train_rate(1.1)),
    ),
    Trial(
        what="a tray that completed without resources: no clique, a cluster of zeros", source="Azure/azhpc-images pull 506",
        records=lambda: hosted(GB200, nodes=2, gpus=4, adapters=4), named="node1",
        change=both(state(**fabric()), state(range(4, 8), **fabric(status=23, clique=0, cluster="00" * 16))),
    ),
    Trial(
        what="one node that reads the data for six minutes: NFS", source="arXiv 2605.09370 (504 B200: NFS RPC saturation)",
        records=lambda: hosted(H100, nodes=2), named="node1",change=both(took("data", 340.0, ranks_of(1)), later(337.0)),
    ),
    Trial(
        what="a corrupt copy of the data on one node: its ranks do not learn", source="public reports of corrupt local data caches",
        records=lambda: hosted(H100, nodes=2), named="node1",
        change=both(of_losses((2.3, 2.31, 2.3, 2.3), (2.29, 2.3, 2.31, 2.3), ranks_of(1)), of_losses((2.3, 2.1, 1.95, 1.85), (1.7, 1.66, 1.61, 1.57), ranks_of(0))),
    ),
    Trial(
        what="a monitor that stops the boards of one node for some milliseconds", source="NVIDIA/dcgm-exporter issues 96 and 311",
        records=lambda: hosted(H100, nodes=2), named="node0",change=both(tails(0.022, 10.0, ranks_of(0)), messages(0.02, 10.0), train_rate(1.15)),
    ),
    Trial(
        what="a record that yesterday's run left behind", source="shared report folders", records=lambda: hosted(H100), named="rank 4",
        change=both(each_of("before", [4], lambda own: own.update(time=own["time"] - 86_400)), each_of("after", [4], lambda own: own.update(time=own["time"] - 86_400))),
    ),
    Trial(
        what="a firmware that hangs: the readings after the work are those before it", source="gpustack/runtime issue 26; DCGM issue 303",
        records=lambda: hosted(H100), named="rank 5",change=cached,
    ),
    Trial(
        what="62 GiB held by a process of the former job that nobody ended", source="Slurm epilog reports; Azure health checks for GPU processes",
        records=lambda: hosted(H100), named="rank 7",
        change=both(lambda r: r[7].results["before"]["reading"].update(memory_used_bytes=62 * GIB), state([7], after=True, memory_used_bytes=70.5 * GIB), result("memory", [7], tested_bytes=int(0.9 * 17 * GIB))),
    ),
    Trial(
        what="a node that booted with seven of eight GPUs", source="Xid 79 runbooks; microsoft/dion issue 76",
        records=lambda: hosted(H100, nodes=2), named="node1",change=one_gone,
    ),
    Trial(
        what="a GH200 of four whose link to its CPU carries 60 GB/s", source="NVIDIA/nvbandwidth issue 23",
        records=lambda: hosted(GH200, nodes=4, gpus=1, adapters=1), named="rank 2",change=copy_time(4.2, [2]),
    ),
    Trial(
        what="a GPU that falls off the bus at the end: NVML counts anew", source="Xid 79 after long jobs", records=lambda: hosted(H100),
        named="rank 7",change=renumbered,
    ),
    Trial(
        what="a tuner that takes the wrong protocol for 8 MiB", source="NVIDIA/nccl issue 1453 (wrong protocol); aws-ofi-nccl's tuner",
        records=lambda: hosted(H100, nodes=2), named="all ranks",
        change=with_sizes(lambda name, size: 12.0 if (name, size) == ("all_reduce", 8 * MIB) else 1.0),
    ),
    Trial(
        what="memory of an H100 that is quicker than its data sheet: 5.2 of 3.35 TB/s", source="physics: a clock or an event that lies",
        records=lambda: hosted(H100), named="rank 2",change=memory(1.76, 2),
    ),
)  # fmt: skip


GRACE: Change = host(
    kernel="6.14.0-1007-nvidia-64k",
    clock_source="arch_sys_counter",
    processors=144,
    processors_allowed=144.0,
    memory_bytes=960 * GIB,
    memory_available_bytes=900 * GIB,
)
GRACE_HOPPER: Change = host(
    kernel="6.14.0-1007-nvidia-64k",
    clock_source="arch_sys_counter",
    processors=72,
    processors_allowed=72.0,
    memory_bytes=572 * GIB,
    memory_available_bytes=500 * GIB,
)
HEALTHY: tuple[Trial, ...] = (
    Trial(what="eight H800: eight links each", source="hardware of 2023 for China; NVIDIA/nccl issue 1531", records=lambda: hosted(H800), change=noisy(1)),
    Trial(what="eight H20: much memory, few multiprocessors", source="NVIDIA/cuda-samples issue 366", records=lambda: hosted(H20), change=noisy(2)),
    Trial(what="eight B300, cooled by liquid", source="SemiAnalysisAI/InferenceX", records=lambda: hosted(B300), change=both(noisy(3), state(after=True, temperature_celsius=41))),
    Trial(
        what="two p5 of AWS: 32 ports of 100 Gbit/s each", source="aws-ofi-nccl; InferenceX pull 2979", records=lambda: hosted(H100, nodes=2, port=100, adapters=32),
        change=both(all_ports(lambda n: port(f"rdmap{n}s27/1", 100.0), 32), lambda r: large(r, 0.27), lambda r: meetings(r, 0.27, across),
            variables(FI_PROVIDER="efa", FI_EFA_USE_DEVICE_RDMA="1"), noisy(4)),
    ),
    Trial(
        what="two machines of Google with eight interfaces of 200 Gbit/s and no RDMA", source="Google Cloud: a3-megagpu, GPUDirect-TCPXO", records=lambda: hosted(H100, nodes=2, port=200),
        change=both(all_ports(lambda n: port(f"eth{n}", 200.0, rdma=False), 9, peer_memory=False), lambda r: large(r, 1.12), lambda r: meetings(r, 1.12, across), lambda r: small(r, 60e-6)),
    ),
    Trial(what="two RTX 4090, which support neither ECC nor NVLink", source="workstations; netdata issue 15755 (N/A fields)", records=lambda: hosted(RTX4090, gpus=2), change=both(geforce, noisy(6))),
    Trial(what="two of eight GPUs in a container", source="CUDA_VISIBLE_DEVICES under Docker", records=lambda: hosted(H100, gpus=2), change=visible),
    Trial(
        what="a board with 1,200 corrected errors and two remapped rows, all old", source="NVIDIA GPU memory error management; leptonai/gpud pull 108", records=lambda: hosted(A100),
        change=state([3], ecc_corrected=1200, remapped_rows=[2, 0, 0, 0]),
    ),
    Trial(what="errors of programs in the kernel log: XIDs 13, 31 and 43", source="ai-infrastructure.net: not faults of the hardware", records=lambda: hosted(H100), change=state([1], xids_before=[13, 31, 43])),
    Trial(what="four GH200 with pages of 64 KiB and the clock of Arm", source="eth-cscs/cscs-docs pull 118", records=lambda: hosted(GH200, nodes=4, gpus=1, adapters=1), change=both(GRACE_HOPPER, noisy(10))),
    Trial(
        what="a virtual machine of Hyper-V: its own clock, no governor", source="Azure ND H100 v5", records=lambda: hosted(H100, nodes=2),
        change=both(host(clock_source="hyperv_clocksource_tsc_page", governor=None, kernel="6.8.0-1021-azure", processors=96, processors_allowed=96.0), noisy(11)),
    ),
    Trial(
        what="a pod with a quota of 23.5 processors and 64 GiB of shared memory", source="Kubernetes limits.cpu", records=lambda: hosted(H100),
        change=host(processors_allowed=23.5, shared_memory_bytes=64 * GIB, busy_ratio=0.11, memory_available_bytes=1400 * GIB),
    ),
    Trial(what="four nodes of H100 with all the noise of a fleet", source="arXiv papers on GPU variability", records=lambda: hosted(H100, nodes=4), change=noisy(13, 0.02)),
    Trial(
        what="idle boards that sleep at PCIe 1 and in state 8 before the run", source="nvidia-docker issue 1090 (P8 at idle)", records=lambda: hosted(L40S, gpus=4),
        change=lambda r: [x.results["before"]["reading"].update(pcie_generation=1, performance_state=8, sm_clock_hertz=210e6, memory_clock_hertz=405e6, power_watts=33.0) for x in r] and None,
    ),
    Trial(
        what="an air-cooled server whose rear boards get 76 degrees and lose 3 %", source="serve-the-home style reports; physics", records=lambda: hosted(H100),
        change=both(under_load(hot_rear), noisy(15, 0.004), lambda r: read(r, range(4, 8), both=False, temperature_celsius=72)),
    ),
    Trial(
        what="boards at their power limit, as H100s are in large products", source="NVIDIA data sheets", records=lambda: hosted(H100),
        change=state(after=True, power_watts=697.0, sm_clock_hertz=1755e6, throttle_reasons=["power_cap"], temperature_celsius=66),
    ),
    Trial(what="four H200 NVL with bridges in pairs", source="Azure/azurehpc-health-checks issue 162 (bridged boards)", records=lambda: hosted(H200_NVL, gpus=4, pair=bridged(365, 34)), change=noisy(17)),
    Trial(
        what="eight RTX PRO 6000, which no table here has", source="servers of 2025", records=lambda: hosted(RTX_PRO, topology=TWO_SOCKETS), expect=RTX_PRO_EXPECTED,
        change=both(present(compute_capability=[12, 0]), noisy(18)),
    ),
    Trial(
        what="eight L4 at 72 W, always at their limit", source="Google Cloud g2", records=lambda: hosted(L4, topology=TWO_SOCKETS),
        change=both(sheet(72.0, 2040, 71.8), before(power_watts=13.0), state(after=True, sm_clock_hertz=1230e6, throttle_reasons=["power_cap"], temperature_celsius=68)),
    ),
    Trial(
        what="four H100 PCIe beside no bridge, on two nodes with one port of 200 Gbit/s", source="small university clusters", records=lambda: hosted(H100_PCIE, nodes=2, gpus=2, port=200, adapters=1),
        change=both(lambda r: read(r, nvlinks_up=0), noisy(20)),
    ),
    Trial(
        what="ports of 200 Gbit/s beside an interface of 100 for people", source="DGX A100 networking", records=lambda: hosted(A100, nodes=2, port=200),
        change=both(all_ports(dual, 9), noisy(21)),
    ),
    Trial(
        what="RDMA over Ethernet without any loss", source="bytedance/byteps issue 179 (counters); DCQCN", records=lambda: hosted(H100, nodes=2),
        change=both(lambda r: ports(r, None, range(8), kind="Ethernet"), counters(None, range(8), {"out_of_sequence": 0}, {"out_of_sequence": 0})),
    ),
    Trial(
        what="400 days up, with old symbol errors and link losses that do not grow", source="ibqueryerrors manuals", records=lambda: hosted(H100, nodes=2),
        change=both(host(up_seconds=3.5e7), counters(None, range(8), {"link_downed": 1}, {"link_downed": 1}), counters(None, [1, 5], {"symbol_error": 311, "link_downed": 14}, {"symbol_error": 311, "link_downed": 14})),
    ),
    Trial(what="a first step of eight seconds: kernels are chosen and loaded", source="cudnn.benchmark, lazy loading of CUDA modules", records=lambda: hosted(A100), change=both(each_of("training", None, warmed_up), later(7.0), took("training", 19.0, range(8)))),
    Trial(what="one product and one message that take very long, of thousands", source="physics: an interrupt", records=lambda: hosted(H100), change=rare),
    Trial(what="two trays of one rack, whole", source="nebius-solutions-library pull 1135", records=lambda: hosted(GB200, nodes=2, gpus=4, line=14.9, adapters=4), change=both(GRACE, state(**fabric(clique=32766)))),
    Trial(what="a DGX-2: sixteen V100 behind switches", source="NVIDIA DGX-2", records=lambda: hosted(DGX2, gpus=16, port=100, adapters=8), change=noisy(27)),
    Trial(what="three nodes of three L40S over one port of 100 Gbit/s", source="odd small clusters", records=lambda: hosted(L40S, nodes=3, gpus=3, port=100, adapters=1), change=noisy(28),
    ),
    Trial(
        what="a build of NVIDIA's container, newer than any release", source="nvcr.io/nvidia/pytorch tags", records=lambda: hosted(B200),
        change=both(present(torch="2.12.0a0+5228986c39.nv26.03", cuda="13.2", nccl=[2, 30, 7]), lambda r: read(r, driver="595.71.05")),
    ),
    Trial(
        what="variables that guides recommend and that cost nothing", source="NCCL user guide", records=lambda: hosted(H100, nodes=2, adapters=10),
        change=both(lambda r: ports(r, None, [8, 9], rate_gigabits=200.0), variables(NCCL_DEBUG="WARN", NCCL_SOCKET_IFNAME="bond0", NCCL_IB_HCA="^mlx5_8,mlx5_9", CUDA_DEVICE_ORDER="PCI_BUS_ID")),
    ),
)  # fmt: skip
