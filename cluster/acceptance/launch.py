"""The two ways in: one plain command that starts everything, or one process of many that torchrun has started.

Either way each rank's work is done by a worker under a watchdog, what is known of each rank lies in one store in the
end, and one process writes the report: the plain command, or rank 0 (another one where that is gone).
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from cluster.acceptance import baseline, expectations, report
from cluster.acceptance.beginning import JSON_NAME
from cluster.acceptance.options import REAL_GPU, Options, parse
from cluster.acceptance.records import Record
from cluster.acceptance.report import Standards
from cluster.acceptance.store import SurvivingStore, connect, node_name, serve, within
from cluster.acceptance.verdict import EXIT_CODES
from cluster.acceptance.watchdog import GRACE_SECONDS, Watchdog
from labkit import LabError
from labkit.device import DeviceError, is_simulated

RANKS_WITHOUT_GPU = 2
STORE_SECONDS = 60.0
AFTER_SIGNAL_SECONDS = 6.0
"""torchrun kills what is not gone 30 s after its SIGTERM."""
MOVED_SECONDS = 5.0
"""After the store's node is lost: for the others to notice it, too, and to come to the next store."""
COULD_NOT_RUN = EXIT_CODES["COULD NOT RUN"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test; returns one of the exit codes that docs/cluster.md lists."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = parse(words)
    try:
        _check(options)
        standards = Standards(
            earlier=None if options.baseline is None else baseline.read(options.baseline, options),
            expected=None if options.expect is None else expectations.read(options.expect),
        )
    except (LabError, OSError) as error:
        return _refuse(options, str(error))
    if dist.is_torchelastic_launched():
        return _one_of_many(options, words, standards)
    return _alone(options, words, standards)


def _check(options: Options) -> None:
    """Raises what makes the test impossible from the start."""
    if is_simulated():
        raise DeviceError(
            "do not run it under `python -m vgpu`: its watchdog needs a real clock. Use --device vgpu:MODEL"
        )
    if options.kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: PyTorch finds no NVIDIA GPU. Does nvidia-smi list one?")
    if options.kind == "vgpu":
        import vgpu

        try:
            vgpu.get_spec(options.device.partition(":")[2] or "T4")
        except vgpu.SpecError as error:
            raise DeviceError(f"--device {options.device}: {error}") from error
    options.report.mkdir(parents=True, exist_ok=True)


def _refuse(options: Options, reason: str) -> int:
    if int(os.environ.get("RANK", 0)) == 0:
        return report.refuse(options, reason)
    print(f"could not run: {reason}", file=sys.stderr)
    return COULD_NOT_RUN


def _alone(options: Options, words: Sequence[str], standards: Standards) -> int:
    gpus = torch.cuda.device_count() if options.kind in ("auto", "cuda") else 0
    ranks = options.ranks or gpus or RANKS_WITHOUT_GPU
    server = serve()
    watchdog = _watchdog(SurvivingStore(within(server)), options, show=True)
    _on_signals(watchdog)
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.port}
        watchdog.start({name: str(value) for name, value in (place | meeting).items()}, words)
    records = watchdog.run()
    return report.conclude(options, records, simulated=watchdog.simulated, standards=standards)


def _one_of_many(options: Options, words: Sequence[str], standards: Standards) -> int:
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0:
        print("a second try is no test: the report of the first one holds (use --max-restarts=0)", file=sys.stderr)
        return EXIT_CODES["FAIL"]
    rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    # Where torchrun's agent keeps no store for the ranks, rank 0 does, as with init_process_group.
    server = None
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        server = serve(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    try:
        store = SurvivingStore(connect(STORE_SECONDS))
    except dist.DistError as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = f"{node_name()}: nobody answers at {where}, where the ranks should meet; is that node up? ({error})"
        # In a folder that nodes share the others' report says more: that this node is missing.
        if local_rank == 0 and not (options.report / JSON_NAME).exists():
            return report.refuse(options, reason)
        print(f"could not run: {reason}", file=sys.stderr)
        return COULD_NOT_RUN
    watchdog = _watchdog(store, options, show=rank == 0)
    _on_signals(watchdog)
    watchdog.start(_place(), words)
    store.meet(rank=rank, world_size=world_size, keeps_reserve=local_rank == 0, seconds=STORE_SECONDS)
    watchdog.run()
    code = EXIT_CODES["FAIL"]
    if rank == 0 or (not _reported(store, options, watchdog) and store.first("reporter", str(rank))):
        records = _collect(store, world_size, watchdog)
        code = report.conclude(
            options, records, simulated=watchdog.simulated, standards=standards, hand_on=_tell_torchrun
        )
        store.set("verdict", str(code))
    elif _wait(store, ["verdict"], AFTER_SIGNAL_SECONDS):
        code = int(store.get("verdict"))
        if local_rank == 0:
            _tell_torchrun(f"FINAL ACCEPTANCE: exit code {code}; the banner and the report are rank 0's")
    store.set(f"left/{rank}", "")
    if server is not None or store.serves:
        # Others may still have a question.
        there = [f"left/{other}" for other in range(world_size) if store.check([f"record/{other}"])]
        _wait(store, there, AFTER_SIGNAL_SECONDS)
    return code


def _tell_torchrun(text: str) -> None:
    """Have torchrun end with these words instead of a traceback of its own, which would stand below the banner.

    It shows what the rank that failed first has left in this file (torch.distributed.elastic.multiprocessing.errors);
    a rank that ends with 0 is not looked for.
    """
    if (path := os.environ.get("TORCHELASTIC_ERROR_FILE")) is None:
        return
    # A second earlier than any other rank can end, so that this one is the first.
    extra = {"py_callstack": f"\n{text}", "timestamp": str(int(time.time()) - 1)}
    try:
        Path(path).write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}), encoding="utf-8")
    except OSError as error:
        print(f"torchrun will not repeat the banner: {error}", file=sys.stderr)


def _reported(store: SurvivingStore, options: Options, watchdog: Watchdog) -> bool:
    """Whether rank 0 has reported; waits for it as long as it may still do so."""
    patience = AFTER_SIGNAL_SECONDS if watchdog.signalled else options.stage_seconds + 3 * GRACE_SECONDS
    ends = time.monotonic() + patience
    moved_at = None
    while not store.check(["verdict"]):
        now = time.monotonic()
        if watchdog.signalled:
            ends = min(ends, now + AFTER_SIGNAL_SECONDS)
        if store.moved:
            moved_at = moved_at or now
            # If rank 0 lives, it has come to the new store as well and said again where it is.
            if now - moved_at > MOVED_SECONDS and not store.check(["place/0"]):
                return False
        if now > ends:
            return False
        time.sleep(0.1)
    return True


def _place() -> dict[str, str]:
    return {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


def _watchdog(store: SurvivingStore, options: Options, *, show: bool) -> Watchdog:
    load_seconds = (options.load_seconds or REAL_GPU.load_seconds) if options.thorough else 0.0
    return Watchdog(store, stage_seconds=options.stage_seconds, load_seconds=load_seconds, show=show)


def _on_signals(watchdog: Watchdog) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, watchdog.signal)


def _wait(store: SurvivingStore, keys: list[str], seconds: float) -> bool:
    """Whether all keys are there within so many seconds."""
    ends = time.monotonic() + seconds
    while not store.check(keys):
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True


def _collect(store: SurvivingStore, world_size: int, watchdog: Watchdog) -> list[Record]:
    """The records of all ranks; a rank of which there is no word is lost."""
    seconds = 3 * GRACE_SECONDS
    if watchdog.signalled or store.moved:
        seconds = AFTER_SIGNAL_SECONDS / 2
    ends = time.monotonic() + seconds
    records = []
    for rank in range(world_size):
        if _wait(store, [f"record/{rank}"], max(0.0, ends - time.monotonic())):
            records.append(Record.loads(store.get(f"record/{rank}")))
        else:
            known = store.check([f"place/{rank}"])
            record = Record.loads(store.get(f"place/{rank}")) if known else Record(rank=rank)
            if not known and rank in store.hosts:
                record.node = store.hosts[rank].node
            record.ending, record.detail = "lost", "its processes are gone, or its node is"
            records.append(record)
    return records
