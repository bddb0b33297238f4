"""The two ways in: one plain command that starts everything, or one process of many that torchrun has started.

Either way each rank's work is done by a worker under a watchdog, what is known of each rank lies in one store in the
end, and one process writes the report: the plain command, or rank 0 (another one where that is gone).
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from cluster.acceptance import baseline, report
from cluster.acceptance.options import Options, parse
from cluster.acceptance.records import Record
from cluster.acceptance.store import Store, connect, serve, within
from cluster.acceptance.verdict import EXIT_CODES
from cluster.acceptance.watchdog import GRACE_SECONDS, Watchdog
from labkit.device import DeviceError, is_simulated
from labkit.results import ResultsError

RANKS_WITHOUT_GPU = 2
STORE_SECONDS = 60.0
AFTER_SIGNAL_SECONDS = 6.0
"""torchrun kills what is not gone 30 s after its SIGTERM."""
COULD_NOT_RUN = EXIT_CODES["COULD NOT RUN"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test; returns 0 pass, 1 fail, 2 could not run, 3 incomplete."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = parse(words)
    try:
        _check(options)
        earlier = None if options.baseline is None else baseline.read(options.baseline)
    except (DeviceError, ResultsError, OSError) as error:
        return _refuse(options, str(error))
    if dist.is_torchelastic_launched():
        return _one_of_many(options, words, earlier)
    return _alone(options, words, earlier)


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
    if int(os.environ.get("RANK", 0)) == 0:
        report.remove(options.report)  # an old report must never be taken for this run's


def _refuse(options: Options, reason: str) -> int:
    if int(os.environ.get("RANK", 0)) == 0:
        report.write_refusal(options, reason)
    print(f"could not run: {reason}", file=sys.stderr)
    return COULD_NOT_RUN


def _alone(options: Options, words: Sequence[str], earlier: baseline.Baseline | None) -> int:
    gpus = torch.cuda.device_count() if options.kind in ("auto", "cuda") else 0
    ranks = options.ranks or gpus or RANKS_WITHOUT_GPU
    server = serve()
    watchdog = Watchdog(within(server), stage_seconds=options.stage_seconds, show=True)
    _on_signals(watchdog)
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.port}
        watchdog.start({name: str(value) for name, value in (place | meeting).items()}, words)
    records = watchdog.run()
    return report.conclude(options, records, simulated=watchdog.simulated, earlier=earlier)


def _one_of_many(options: Options, words: Sequence[str], earlier: baseline.Baseline | None) -> int:
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0:
        print("a second try is no test: the report of the first one holds (use --max-restarts=0)", file=sys.stderr)
        return EXIT_CODES["FAIL"]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Where torchrun's agent keeps no store for the ranks, rank 0 does, as with init_process_group.
    server = None
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        server = serve(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = connect(STORE_SECONDS)
    watchdog = Watchdog(store, stage_seconds=options.stage_seconds, show=rank == 0)
    _on_signals(watchdog)
    watchdog.start(_place(), words)
    watchdog.run()
    if rank == 0:
        records = _collect(store, world_size, watchdog)
        code = report.conclude(options, records, simulated=watchdog.simulated, earlier=earlier)
        store.set("verdict", str(code))
        if server is not None:
            _wait(store, [f"left/{other}" for other in range(1, world_size)], AFTER_SIGNAL_SECONDS)
        return code
    patience = AFTER_SIGNAL_SECONDS if watchdog.signalled else options.stage_seconds + 3 * GRACE_SECONDS
    if not _wait(store, ["verdict"], patience, watchdog):
        # Rank 0 is gone: one of the others reports, the first to say so.
        if store.compare_set("reporter", "", str(rank)) != str(rank).encode():
            return EXIT_CODES["FAIL"]
        records = _collect(store, world_size, watchdog)
        return report.conclude(options, records, simulated=watchdog.simulated, earlier=earlier)
    code = int(store.get("verdict"))
    store.set(f"left/{rank}", "")
    return code


def _place() -> dict[str, str]:
    return {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


def _on_signals(watchdog: Watchdog) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, watchdog.signal)


def _wait(store: Store, keys: list[str], seconds: float, watchdog: Watchdog | None = None) -> bool:
    """Whether all keys are there within so many seconds, or within few after a signal."""
    ends = time.monotonic() + seconds
    hurried = watchdog is None or watchdog.signalled
    while not store.check(keys):
        if watchdog is not None and watchdog.signalled and not hurried:
            hurried, ends = True, min(ends, time.monotonic() + AFTER_SIGNAL_SECONDS)
        if time.monotonic() > ends:
            return False
        time.sleep(0.1)
    return True


def _collect(store: Store, world_size: int, watchdog: Watchdog) -> list[Record]:
    """The records of all ranks; a rank of which there is no word is lost."""
    ends = time.monotonic() + (AFTER_SIGNAL_SECONDS / 2 if watchdog.signalled else 3 * GRACE_SECONDS)
    records = []
    for rank in range(world_size):
        if _wait(store, [f"record/{rank}"], max(0.0, ends - time.monotonic()), watchdog):
            records.append(Record.loads(store.get(f"record/{rank}")))
        else:
            known = store.check([f"place/{rank}"])
            record = Record.loads(store.get(f"place/{rank}")) if known else Record(rank=rank)
            record.ending, record.detail = "lost", "its processes are gone, or its node is"
            records.append(record)
    return records
