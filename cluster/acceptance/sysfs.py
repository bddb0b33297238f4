"""What Linux tells of a node's network ports: state, rate, error counters, flaps. Only reads files; judges nothing.

Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net; NVIDIA, Understanding
mlx5 Linux Counters and Status Parameters.
"""

from pathlib import Path
from typing import Any

from cluster.acceptance.hardware import PCIE_GIGATRANSFERS

COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "port_xmit_discards",
)  # fmt: skip
"""Of InfiniBand's port, in its folder `counters`."""
HARDWARE_COUNTERS = (
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "req_transport_retries_exceeded",
)  # fmt: skip
"""Of the adapter, in its folder `hw_counters`."""
FLAPS = "carrier_down_count"
"""Of the interface."""


def ports(root: Path) -> list[dict[str, Any]]:
    """All physical ports: those that carry RDMA, then the others. Virtual interfaces (bridges, veth) are left out."""
    interfaces = _interfaces(root)
    entries = []
    for device in sorted((root / "class" / "infiniband").glob("*")):
        for port in sorted((device / "ports").glob("*")):
            name, number = f"{device.name}/{port.name}", port.name
            joined = [
                interface for interface in interfaces if (interface / "device" / "infiniband" / device.name).exists()
            ]
            joined = [
                interface for interface in joined if _count(interface / "dev_port") in (None, int(number) - 1)
            ] or joined
            entries.append(
                {
                    "name": name,
                    "kind": _text(port / "link_layer") or "InfiniBand",
                    "rdma": True,
                    "up": (_text(port / "state") or "").partition(":")[2].strip() == "ACTIVE",
                    "rate_gigabits": _gigabits(_text(port / "rate")),
                    **_slot(device / "device"),
                    **_settings(device / "fw_ver", joined),
                    "counters": _counters(port) | (_flaps(joined[0]) if len(joined) == 1 else {}),
                }
            )
    for interface in interfaces:
        if (interface / "device" / "infiniband").exists():
            continue  # the same port as above
        speed = _count(interface / "speed")
        entries.append(
            {
                "name": interface.name,
                "kind": "Ethernet",
                "rdma": False,
                "up": _text(interface / "operstate") == "up",
                "rate_gigabits": speed / 1e3 if speed and speed > 0 else None,
                **_slot(interface / "device"),
                **_settings(None, [interface]),
                "counters": _flaps(interface),
            }
        )
    return entries


def peer_memory(root: Path) -> bool:
    """Whether the module is loaded by which adapters reach a GPU's memory (newer kernels can do without: dma-buf)."""
    return any((root / "module" / name).exists() for name in ("nvidia_peermem", "nv_peer_mem"))


def pcie_errors(device: Path) -> list[int] | None:
    """Errors of a device's PCIe link that the kernel counted: correctable, not fatal, fatal; None if it counts none.

    Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats.
    """
    totals = []
    for name in ("correctable", "nonfatal", "fatal"):
        words = [line.split() for line in (_text(device / f"aer_dev_{name}") or "").splitlines()]
        total = [line[1] for line in words if len(line) == 2 and line[0].startswith("TOTAL_ERR")]
        if len(total) != 1 or not total[0].isdigit():
            return None
        totals.append(int(total[0]))
    return totals


def _interfaces(root: Path) -> list[Path]:
    return [path for path in sorted((root / "class" / "net").glob("*")) if (path / "device").exists()]


def _slot(device: Path) -> dict[str, Any]:
    """The adapter's PCIe link, now and at its best; empty for one that has none (virtio, Xen)."""
    width, widest = _count(device / "current_link_width"), _count(device / "max_link_width")
    speed, fastest = (_gigabits(_text(device / f"{which}_link_speed")) for which in ("current", "max"))
    if not width or not speed:
        return {}
    return {
        "pcie_width": width,
        "pcie_width_max": widest,
        "pcie_generation": PCIE_GIGATRANSFERS.get(speed),
        "pcie_generation_max": PCIE_GIGATRANSFERS.get(fastest or 0.0),
        "numa_node": _count(device / "numa_node"),
    }


def _settings(firmware: Path | None, interfaces: list[Path]) -> dict[str, Any]:
    """The adapter's firmware, and the largest packet of its interface; without what nobody tells."""
    mtu = _count(interfaces[0] / "mtu") if len(interfaces) == 1 else None
    found = {"firmware": _text(firmware) if firmware is not None else None, "mtu": mtu}
    return {name: value for name, value in found.items() if value}


def _counters(port: Path) -> dict[str, int]:
    values = {name: _count(port / "counters" / name) for name in COUNTERS}
    values |= {name: _count(port / "hw_counters" / name) for name in HARDWARE_COUNTERS}
    return {name: value for name, value in values.items() if value is not None}


def _flaps(interface: Path) -> dict[str, int]:
    value = _count(interface / FLAPS)
    return {} if value is None else {FLAPS: value}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # a port that is down answers "Invalid argument"
        return None


def _count(path: Path) -> int | None:
    text = _text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _gigabits(rate: str | None) -> float | None:
    """Of "400 Gb/sec (4X NDR)", and of "16.0 GT/s PCIe"."""
    try:
        return float((rate or "").split()[0])
    except (IndexError, ValueError):
        return None
