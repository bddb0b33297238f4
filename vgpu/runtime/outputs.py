"""What a run under `python -m vgpu` leaves behind: one line, and if asked for, a summary and files.

Not here: running the program (`vgpu.tools.run`), and how each of them is made (`vgpu.runtime.views.report`,
`vgpu.runtime.views.picture`, `vgpu.runtime.views.trace`, `vgpu.device.recording.file`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpu.device.recording import file
from vgpu.runtime.views import history, picture, trace

if TYPE_CHECKING:
    from vgpu.runtime.gpu import VirtualGPU


class OutputError(Exception):
    """A file that was asked for cannot be written; the text says why and what to do."""


@dataclass(frozen=True)
class Outputs:
    """What to leave behind when the program is done."""

    summary: bool = False
    picture: Path | None = None
    trace: Path | None = None
    recording: Path | None = None
    program: str = ""
    """What a recording says it is of."""

    def check(self) -> None:
        """Raise OutputError now rather than after hours of work."""
        try:
            if self.picture is not None:
                picture.check_path(self.picture)
                require_writable(self.picture)
                if importlib.util.find_spec("matplotlib") is None:
                    raise OutputError(
                        "--picture needs matplotlib, which is not installed: pip install matplotlib, or use --trace"
                    )
            if self.trace is not None:
                trace.check_path(self.trace)
                require_writable(self.trace)
            if self.recording is not None:
                file.check_path(self.recording)
                require_writable(self.recording)
        except ValueError as error:
            raise OutputError(str(error)) from None

    def for_rank(self, rank: int) -> Outputs:
        """The same for one of several processes: `run.png` becomes `run.rank0.png`."""
        return replace(
            self,
            picture=None if self.picture is None else rank_path(self.picture, rank),
            trace=None if self.trace is None else rank_path(self.trace, rank),
            recording=None if self.recording is None else rank_path(self.recording, rank),
        )

    def described(self) -> tuple[Any, ...]:
        """As plain values, from which `rebuilt` makes the same."""
        files = (self.picture, self.trace, self.recording)
        return (self.summary, *(None if path is None else str(path) for path in files), self.program)

    @classmethod
    def rebuilt(cls, description: Sequence[Any]) -> Outputs:
        """What `described` returned."""
        summary, *files, program = description
        drawn, traced, recorded = (None if path is None else Path(path) for path in files)
        return cls(summary, drawn, traced, recorded, program)

    def write(self, gpu: VirtualGPU) -> None:
        """Summary and last line to stderr, and the files; what fails is said, and the rest still made."""
        gpus = [each for each in history.gpus_of(gpu) if each.timeline] or [gpu]
        if self.summary:
            for each in gpus:
                print(f"{each.summary()}\n", file=sys.stderr)
        files = ((self.picture, gpu.save_picture), (self.trace, gpu.save_trace), (self.recording, self._record_of(gpu)))
        for path, save in files:
            if path is None:
                continue
            if not any(each.started for each in gpus):
                print(f"[vgpu] {path} was not written: this process used no GPU", file=sys.stderr)
                continue
            try:
                save(path)
                print(f"[vgpu] wrote {path}", file=sys.stderr)
            except (OSError, ValueError, RuntimeError) as error:
                print(f"[vgpu] {path} was not written: {error}", file=sys.stderr)
        # In one piece: torchrun's ranks share the stream, and print() writes the end of the line by itself under -u.
        sys.stderr.write(f"{last_line(gpu)}\n")
        sys.stderr.flush()

    def _record_of(self, gpu: VirtualGPU) -> Callable[[Path], Path]:
        return lambda path: file.save(gpu.machine.recording(self.program), path)


def rank_path(path: Path, rank: int) -> Path:
    """`trace.json.gz` becomes `trace.rank2.json.gz`."""
    suffix = ".json.gz" if path.name.endswith(".json.gz") else path.suffix
    return path.with_name(f"{path.name.removesuffix(suffix)}.rank{rank}{suffix}")


def last_line(gpu: VirtualGPU) -> str:
    """What was simulated, how long it took there, how busy the devices were and how much memory they needed."""
    gpus = history.gpus_of(gpu)
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    rank, ranks = trace.rank_and_size()
    who = f"rank {rank} of {ranks}: " if rank is not None else ""
    mode = "" if gpu.values else ", shapes only"
    # Each rank of a job uses one GPU as a rule; the others have lines of their own.
    shown = gpus if rank is None else [each for each in gpus if each.timeline] or gpus[:1]
    busy = ", ".join(f"{each.utilization:.0%}" for each in shown)
    peaks = ", ".join(f"{each.memory.settled().peak('allocated_bytes') / 2**20:.1f}" for each in shown)
    return (
        f"[vgpu] {who}simulated {count}{gpu.spec.title}{mode}: {gpu.now():.4g} s of virtual time, device busy {busy}, "
        f"peak {peaks} MiB; modelled, not measured{_packages()}"
    )


def _packages() -> str:
    """A note if the program uses the flash_attn that is simulated, by the label of its version."""
    version = str(getattr(sys.modules.get("flash_attn"), "__version__", ""))
    return "; flash_attn is simulated" if version.endswith("+vgpu") else ""


def require_writable(path: Path) -> None:
    """Raise OutputError, with what to do, for a file that could not be written."""
    folder = path.parent
    if path.is_dir():
        raise OutputError(f"{path} is a folder: name a file in it")
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: no permission")
