"""What Lab 3's ranks must be after `setup`, and which mistake leads to the backend and the GPU that they have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradebox.run.assertions import Cause, CheckFailed, recognising, require_equal
from gradebox.run.submission import Submission
from grader.lab3.setup.cases.joining import Join, Meeting, SetupReply
from grader.lab3.setup.cases.training import OnCpu

_NCCL = "lab3.setup.nccl_on_gpus"
_BACKEND_HINT = "Use nccl if this rank computes on a GPU and each rank of its machine has a GPU of its own; else gloo."
_GPU_HINT = "Take GPU number LOCAL_RANK (or rank) % torch.cuda.device_count(), and make it the current one."


@dataclass(frozen=True)
class Place:
    """What `setup` can know of where a rank is."""

    on_gpu: bool
    rank: int
    ranks: int
    here: int
    """Ranks on its machine."""
    local: int
    gpus: int

    @property
    def backend(self) -> str:
        """The right one."""
        return "nccl" if self.on_gpu and self.gpus >= self.here else "gloo"

    @property
    def device(self) -> str:
        """The right one."""
        return f"cuda:{self.local % self.gpus}" if self.on_gpu else "cpu"

    def with_mistake(self, cause: Cause) -> tuple[str, str]:
        """Backend and device if `setup` makes this mistake."""
        enough, everywhere = self.gpus >= self.here, self.gpus >= self.ranks
        nccl = {
            ALWAYS_GLOO.name: False,
            RANKS_OF_ALL_MACHINES.name: self.on_gpu and everywhere,
            NCCL_FOR_THE_CPU.name: everywhere,
            NCCL_ON_SHARED_GPUS.name: self.on_gpu,
        }.get(cause.name, self.on_gpu and enough)
        if not self.on_gpu:
            return "nccl" if nccl else "gloo", "cpu"
        number = {
            ONE_GPU.name: 0,
            LOCAL_RANK_IGNORED.name: self.rank % self.gpus,
            LAST_GPU_SHARED.name: min(self.local, self.gpus - 1),
        }.get(cause.name, self.local % self.gpus)
        return "nccl" if nccl else "gloo", f"cuda:{number}"


ALWAYS_GLOO = Cause("always_gloo", _BACKEND_HINT, _NCCL, mistake="setup() joins by gloo although each rank has a GPU")
RANKS_OF_ALL_MACHINES = Cause(
    "ranks_of_all_machines",
    "Compare torch.cuda.device_count() with LOCAL_WORLD_SIZE if that is set, else with world_size.",
    _NCCL,
    mistake="setup() compares the GPUs of this machine with the ranks of all machines",
)
NCCL_FOR_THE_CPU = Cause(
    "nccl_for_the_cpu",
    _BACKEND_HINT,
    _NCCL,
    mistake="setup() joins by NCCL wherever there are GPUs, although the rank computes on the CPU",
)
NCCL_ON_SHARED_GPUS = Cause(
    "nccl_on_shared_gpus",
    _BACKEND_HINT,
    _NCCL,
    mistake="setup() joins by NCCL although ranks share a GPU",
)
ONE_GPU = Cause(
    "ranks_on_one_gpu",
    f"{_GPU_HINT} Join by gloo if ranks share a GPU.",
    _NCCL,
    mistake="Several ranks take the same GPU, such as GPU 0",
)
LOCAL_RANK_IGNORED = Cause(
    "local_rank_ignored",
    "Read LOCAL_RANK: it counts the ranks of this machine, and `rank` counts those of all machines.",
    _NCCL,
    mistake="The GPU is chosen by the rank among all machines, and LOCAL_RANK is ignored",
)
LAST_GPU_SHARED = Cause(
    "last_gpu_shared",
    "Let ranks take turns if there are fewer GPUs than ranks: LOCAL_RANK % torch.cuda.device_count().",
    _NCCL,
    mistake="Ranks that have no GPU of their own all share the last one",
)
FIXED_PORT = Cause(
    "setup_has_a_port",
    "Meet where init_method says, or the environment: pass init_method on to init_process_group as it is.",
    "lab3.setup.joins_and_leaves",
    mistake="setup() meets at a fixed port, where another job may listen",
)
PORT_IN_USE = "address already in use"
CLEANUP_WAITS = Cause(
    "cleanup_waits",
    "Leave with dist.destroy_process_group() alone, without a barrier or another collective on the way out.",
    "lab3.setup.fails_cleanly",
    mistake="A rank waits for the others on its way out of the process group",
)
_CAUSES = (
    ALWAYS_GLOO,
    RANKS_OF_ALL_MACHINES,
    NCCL_FOR_THE_CPU,
    NCCL_ON_SHARED_GPUS,
    ONE_GPU,
    LOCAL_RANK_IGNORED,
    LAST_GPU_SHARED,
)
_TIMED_OUT = ("imed out", "Application timeout")
_ERRORS = (
    ("Duplicate GPU detected", ONE_GPU),
    (PORT_IN_USE, FIXED_PORT),
    ("No backend type associated with device type cpu", NCCL_FOR_THE_CPU),
)
"""What such an error says, by mistake. NCCL refuses two ranks on one GPU, and tensors that are on the CPU; no port that
the checks name is in use."""


def cause_of_error(error: str) -> Cause | None:
    """The mistake of `setup` behind an error that a rank raised later."""
    return next((cause for text, cause in _ERRORS if text in error), None)


def meets_at_fixed_port(submission: Submission) -> bool:
    """Whether `setup` cannot meet where it is told, because somebody else listens at a port of its own."""
    try:
        submission.rank_probe(Join(), 2, device="cpu")
    except CheckFailed as failed:
        return PORT_IN_USE in failed.message
    return False


def timed_out(error: str) -> bool:
    """Whether an error says that a rank waited for another one as long as it was allowed to."""
    return any(text in error for text in _TIMED_OUT)


@contextlib.contextmanager
def naming_errors_of_setup() -> Iterator[None]:
    """Where the submission's code ends with an error that a mistake of `setup` leads to, name that mistake."""
    try:
        yield
    except CheckFailed as failed:
        cause = None if failed.cause else cause_of_error(failed.message)
        if cause is None:
            raise
        raise CheckFailed(
            failed.message, cause, answered=failed.answered, picture=failed.picture, evidence=failed.evidence
        ) from failed


def joins_the_cpu_by_nccl(submission: Submission) -> bool:
    """Whether ranks that compute on the CPU of a machine that has a GPU are joined by NCCL."""
    try:
        submission.probe(OnCpu(), device="cpu")
    except CheckFailed as failed:
        return cause_of_error(failed.message) is NCCL_FOR_THE_CPU
    return False


def require_joined(submission: Submission, meetings: Sequence[Meeting], replies: Sequence[SetupReply]) -> None:
    """Fail unless the ranks met in all meetings; name the mistake that leads to all their backends and devices."""

    def cause() -> Cause | None:
        causes = _causes_of(meetings, replies)
        if len(causes) > 1:  # of these meetings none is on the CPU, or none is on several machines
            for_the_cpu = joins_the_cpu_by_nccl(submission)
            causes = [each for each in causes if (each is NCCL_FOR_THE_CPU) == for_the_cpu]
        return causes[0] if len(causes) == 1 else None

    with recognising(cause):
        for rank, reply in enumerate(replies):
            for index, meeting in enumerate(meetings):
                _require_joined_as(meeting, reply, index, rank, len(replies))


def place_of(meeting: Meeting, reply: SetupReply, rank: int, ranks: int) -> Place:
    """Where a rank is in a meeting."""
    gpus = reply.gpus if meeting.gpus is None else meeting.gpus
    return Place(
        on_gpu=meeting.device == "cuda" or (meeting.device is None and gpus > 0),
        rank=rank,
        ranks=ranks,
        here=ranks if meeting.machine is None else meeting.machine,
        local=rank if meeting.local is None else meeting.local[rank],
        gpus=gpus,
    )


def _causes_of(meetings: Sequence[Meeting], replies: Sequence[SetupReply]) -> list[Cause]:
    """The mistakes of which each leads to all backends and devices; none if these are right."""
    places = [
        (place_of(meeting, reply, rank, len(replies)), reply.meetings[index])
        for rank, reply in enumerate(replies)
        for index, meeting in enumerate(meetings)
    ]
    if all(joined.backend == place.backend and joined.device == place.device for place, joined in places):
        return []

    def explains(cause: Cause) -> bool:
        return all((joined.backend, joined.device) == place.with_mistake(cause) for place, joined in places)

    return [cause for cause in _CAUSES if explains(cause)]


def _require_joined_as(meeting: Meeting, reply: SetupReply, index: int, rank: int, ranks: int) -> None:
    """Fail unless a rank met the others, by the right backend and on its own device."""
    place, joined = place_of(meeting, reply, rank, ranks), reply.meetings[index]
    device = "" if meeting.device is None else f", device={meeting.device!r}"
    what = f"setup({rank}, {ranks}{device}), meeting by {meeting.way}"
    if meeting.local is not None:
        what += f", LOCAL_RANK={place.local}"
    if meeting.machine is not None:
        what += f", LOCAL_WORLD_SIZE={meeting.machine}"
    if meeting.gpus is not None:
        what += f", {place.gpus} GPU{'s' * (place.gpus > 1)} on the machine"
    require_equal(joined.place, [rank, ranks], what=f"{what}: rank and world size of the process group")
    require_equal(joined.sum, float(ranks), what=f"{what}: sum of ones over the ranks")
    require_equal(joined.left, True, what=f"{what}: process group gone after cleanup()")
    require_equal(joined.backend, place.backend, what=f"{what}: backend", hint=_BACKEND_HINT)
    require_equal(joined.device, place.device, what=f"{what}: device it returned", hint=_GPU_HINT)
    if place.on_gpu:
        require_equal(joined.current, place.local % place.gpus, what=f"{what}: current GPU", hint=_GPU_HINT)
