"""What is usual: how far sound siblings are from each other, and what sound machines show."""

from dataclasses import dataclass

from cluster.acceptance.options import REAL_GPU


@dataclass(frozen=True, kw_only=True)
class Floor:
    """How far from the median of its siblings a figure may be, however alike these are."""

    share: float = 0.0
    """Of the median."""
    amount: float = 0.0
    """In its unit."""


FLOORS: dict[str, Floor] = {
    "took.network*": Floor(share=1e9),
    "took.adapters": Floor(share=1e9),
    "took.*": Floor(share=1.0, amount=10.0),
    "presence.host.up_seconds": Floor(share=1e9),
    "network.ports.mtu*": Floor(amount=1.0),
    "presence.host.swapped_bytes": Floor(amount=2.0**30),
    "*longest_seconds": Floor(share=1e5),
    "*p99_seconds": Floor(share=2.0),
    "*p95_seconds": Floor(share=0.5),
    "*slow_share": Floor(amount=0.05),
    "*samples": Floor(share=0.2),
    "*losses*": Floor(share=0.25),
    "gradients.deviation": Floor(share=3.0, amount=2e-5),
    "presence.host.* of * GPU*": Floor(share=1e3),
    "*slow fifth of the median*": Floor(share=0.3),
    "* of *_max_hertz": Floor(share=1e3),
    "* of *": Floor(share=0.15, amount=0.02),
    "training*own_seconds quarter": Floor(share=0.3),
    "*quarter": Floor(share=0.15),
    "*memory_peak_bytes": Floor(share=0.35),
    "change*clock_hertz": Floor(share=1.0, amount=1e9),
    "before*clock_hertz": Floor(amount=1e9),
    "change reading.slowed_seconds*": Floor(amount=1.0),
    "after time": Floor(amount=5.0),
    "*time": Floor(amount=60.0),
    "presence.host.memory_available_bytes": Floor(share=0.6),
    "presence.host.memory_errors*": Floor(amount=100.0),
    "presence.host.locked_memory_bytes": Floor(share=0.15),
    "presence.host.*memory_bytes": Floor(share=0.1),
}
"""By the name of a figure, before those of UNITS."""
UNITS: dict[str, Floor] = {
    "degrees Celsius": Floor(amount=15.0),
    "W": Floor(share=0.35, amount=30.0),
    "J": Floor(share=0.5),
    "bytes": Floor(share=0.2, amount=1.5 * 2**30),
    "Hz": Floor(share=0.12),
    "1": Floor(amount=0.4),
    "bytes/s": Floor(share=0.1, amount=1e9),
    "": Floor(amount=10.0),
    "pages": Floor(amount=4.0),
}
"""By the ledger's unit. Ours: boards of a fleet differ by 8 % from end to end in their rates, by 30 degrees and a third
of their power under load (Sinha et al. 2022, arXiv:2208.11035)."""
COUNTED = ("", "pages")
"""Units of what is counted since an unknown day: far from the others it may be old."""
RATES = Floor(share=0.1)
"""Everything else: times and rates."""
OF = (
    ("memory.tested_bytes", "memory.total_bytes"),
    ("before reading.sm_clock_hertz", "before reading.sm_clock_max_hertz"),
    ("before reading.power_limit_watts", "before reading.power_limit_default_watts"),
    ("load.series.products_per_second at least", "load.series.products_per_second"),
    ("after reading.sm_clock_hertz", "after reading.sm_clock_max_hertz"),
    ("after reading.memory_used_bytes", "after reading.memory_total_bytes"),
    ("bandwidth.rates.copy", "bandwidth.rates.triad"),
    ("copies.seconds.to_host", "copies.seconds.to_device"),
    ("training.alone_seconds", "training.epochs.own_seconds of epoch 1"),
    ("steadiness.products.p95_seconds", "steadiness.products.p50_seconds"),
    ("steadiness.products.mean_seconds", "steadiness.products.p50_seconds"),
    ("steadiness.copies.to_device.p95_seconds", "steadiness.copies.to_device.p50_seconds"),
    ("steadiness.copies.to_host.p95_seconds", "steadiness.copies.to_host.p50_seconds"),
    ("collectives.steady.p99_seconds", "collectives.steady.p50_seconds"),
    ("collectives.steady.mean_seconds", "collectives.steady.p50_seconds"),
)
"""Figures that mean something as a share of another one."""
USUAL: dict[str, tuple[float, float]] = {
    "memory.tested_bytes of *": (0.84, 1.0),
    "before reading.sm_clock_hertz of *": (0, 0.9),
    "before reading.power_limit_watts of *": (0, 1.02),
    "load.series.products_per_second at least of *": (0.85, 1.0),
    "after reading.sm_clock_hertz of *": (0.67, 1.02),
    "after reading.memory_used_bytes of *": (0, 0.7),
    "bandwidth.rates.copy of *": (0.9, 1.1),
    "copies.seconds.to_host of *": (0.8, 1.25),
    "training.alone_seconds of *": (1.4, 4.8),
    "steadiness.products.p95_seconds of *": (1, 1.2),
    "steadiness.products.mean_seconds of *": (0.9, 1.08),
    "steadiness.copies.*.p95_seconds of *": (1, 1.5),
    "collectives.steady.p99_seconds of *": (1, 6),
    "collectives.steady.mean_seconds of *": (0.9, 1.2),
    "collectives of 1 KiB of the other operations": (0.4, 2.5),
    "after reading.utilization_ratio": (0.8, 1),
    "training.memory_peak_bytes": (2**28, 2**35),
    "training.epochs.images_per_second of the best one": (0.85, 1.0),
    "idle after the work": (0, 0),
    "before reading.temperature_celsius": (5, 75),
    "after reading.temperature_celsius": (15, 110),
    "change reading.temperature_celsius": (1, 75),
    "change reading.power_watts": (5, 1500),
    "change reading.energy_joules": (50, 1e8),
    "before reading.ecc_corrected": (0, 200),
    "before reading.pcie_replays": (0, 200),
    "before reading.nvlink_errors": (0, 200),
    "before reading.ecc_lifetime": (0, 0),
    "before reading.remapped_rows 1": (0, 0),
    "before reading.remapped_rows*": (0, 8),
    "before reading.retired_pages 1": (0, 0),
    "before reading.retired_pages*": (0, 8),
    "before reading.memory_busy_ratio": (0, 0.05),
    "before reading.utilization_ratio": (0, 0.05),
    "before reading.memory_used_bytes": (0, 1.5 * 2**30),
    "before reading.xids_before": (0, 0),
    "before reading.xid_errors": (0, 0),
    "before reading.slowed_seconds*": (0, 3600),
    "change reading.ecc_corrected": (0, 0),
    "change reading.pcie_replays": (0, 0),
    "change reading.nvlink_errors": (0, 0),
    "presence.compute_capability 0": (7, 12),
    "presence.nccl 0": (2, 2),
    "presence.nccl 1": (7, 60),
    "compute.rows": (REAL_GPU.rows, REAL_GPU.rows),
    "compute.depth": (REAL_GPU.depth, REAL_GPU.depth),
    "copies.bytes": (REAL_GPU.copy_bytes, REAL_GPU.copy_bytes),
    "bandwidth.bytes": (2**20, 2**35),
    "steadiness.*samples": (20, 1e6),
    "memory.rounds": (1, 10),
    "gradients.parameters": (62, 62),
    "before reading.pcie_errors 0": (0, 1000),
    "* reading.pcie_errors 0": (0, 10),
    "* reading.pcie_errors *": (0, 0),
    "change reading.slowed_seconds*": (0, 1.0),
    "before reading.nvlinks": (0, 18),
    "before reading.maximum_celsius": (70, 110),
    "change time": (5, 1800),
    "took.memory": (0, 900),
    "took.training": (0, 1200),
    "took.adapters": (0, 900),
    "took.collectives": (0, 300),
    "took.pairs": (0, 300),
    "took.load": (0, 1e5),
    "took.*": (0, 90),
    "before reading.persistence_mode": (1, 1),
    "after reading.performance_state": (0, 3),
    "presence.host.up_seconds": (900, 1e10),
    "presence.host.swapped_bytes": (0, 2**31),
    "network.ports.mtu of RDMA": (4000, 1e5),
    "training.epochs.losses in the last quarter*": (0.02, 3.0),
    "training.*_seconds slow fifth of the median*": (0.9, 1.3),
    "collectives of large messages, slow quarter of the quick one": (1, 1.25),
    "adapters.measured.gigabits to another node of that to itself": (0.9, 1.1),
    "presence.host.processors of each GPU": (2, 1e4),
    "presence.host.memory_bytes of that of its GPUs": (0.5, 1e4),
    "presence.host.memory_available_bytes of that of its GPUs": (0.25, 1e4),
    "training.epochs.losses at the end of its start*": (0.0, 1.1),
    "gradients.deviation": (1e-8, 2e-4),
    "load.series.celsius": (15, 92),
    "presence.host.processors*": (2, 1e4),
    "presence.host.busy_ratio": (0, 0.5),
    "presence.host.memory_available_bytes": (8 * 2**30, 1e14),
    "presence.host.memory_errors 0": (0, 1000),
    "presence.host.memory_errors 1": (0, 0),
    "presence.host.shared_memory_bytes": (2**30, 1e14),
    "presence.host.locked_memory_bytes": (2**30, 1e19),
    "presence.host.open_files": (4096, 1e19),
    "compute.products.*.seconds quarter": (1.0, 1.25),
    "network.ports.counters.link_downed": (0, 100),
    "network.ports.counters.carrier_down_count": (0, 100),
    "network.ports.counters.link_error_recovery": (0, 100),
    "network.ports.counters.*": (0, 1000),
    "network.ports.numa_node": (0, 15),
}  # fmt: skip
"""Ours: what sound machines show, of the tests and of public reports. Beyond it a figure is in the banner."""
NEVER = ("change reading.pcie_errors 1", "change reading.pcie_errors 2")
"""What a sound machine never shows: no pass."""
HELD = ("presence.seen_by*", "presence.given_by_slurm", "presence.restricted", "presence.index",
        "reading.pcie_sent*", "reading.pcie_received*", "before reading.energy*", "after reading.energy*",
        "before reading.nvlink_peers*", "*.topology*", "*total_bytes", "presence.environment*",
        "after reading.slowed*", "after reading.pcie_errors*", "after reading.pcie_*_bytes*",
        "change reading.pcie_*_bytes*", "memory.first_byte*")  # fmt: skip
"""Counters of unknown beginning, numbers that are names, traffic of a moment."""
