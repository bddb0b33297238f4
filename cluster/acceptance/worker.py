"""One rank: goes through the stages, measures, and tells its watchdog through a pipe. Judges nothing.

Ranks agree before each stage that needs all of them, through the store and not through what is being tested: where one
cannot take part, nobody begins and nobody waits.
"""

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from cluster.acceptance.checks import (
    adapters,
    bandwidth,
    collectives,
    compute,
    copies,
    gradients,
    health,
    load,
    memory,
    network,
    pairs,
    presence,
    steadiness,
    training,
)
from cluster.acceptance.context import Context
from cluster.acceptance.options import Options, parse, sizes
from cluster.acceptance.records import STAGES, TOGETHER
from cluster.acceptance.store import connect, within
from labkit import LabError
from labkit.device import open_device

Measure = Callable[[Context], dict[str, Any]]
MEASURES: dict[str, Measure] = {
    "before": health.measure_before,
    "presence": presence.measure,
    "network": network.measure,
    "adapters": adapters.measure,
    "copies": copies.measure,
    "bandwidth": bandwidth.measure,
    "compute": compute.measure,
    "steadiness": steadiness.measure,
    "memory": memory.measure,
    "load": load.measure,
    "gradients": gradients.measure,
    "collectives": collectives.measure,
    "pairs": pairs.measure,
    "data": training.load_data,
    "training": training.measure,
    "network_after": network.measure,
    "after": health.measure_after,
}
STORE_GONE = 5
DECISIVE = ("presence", "compute", "collectives", "pairs", "data")
"""Stages without which a rank cannot take part in the next one of TOGETHER."""


class Rank:
    """The work of one rank."""

    def __init__(self, options: Options, tell: Callable[[dict[str, Any]], None]) -> None:
        self.options = options
        self.tell = tell
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        # The watchdog is the one to end what hangs, so that it can say where it hung: every time limit here is longer.
        self.patience_seconds = 2 * options.stage_seconds + 60
        self.store = connect(self.patience_seconds)
        self.barred: str | None = None
        self.context: Context | None = None

    def at(self, position: str) -> None:
        """Tell the watchdog where this rank stands."""
        message: dict[str, Any] = {"at": position}
        if self.context is not None:
            message["skipped_collectives"] = self.context.planned_collectives - self.context.issued_collectives
        self.tell(message)

    def run(self) -> None:
        """All stages; a device that cannot be opened breaks the stage "presence", and the others cannot begin."""
        # Which device is there is this rank's own finding: torch decides it, not another rank's answer.
        kind = self.options.device
        if kind == "auto":
            kind = "cuda" if torch.cuda.is_available() else "cpu"
        local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
        try:
            with open_device(kind, gpus=local_world_size) as device:
                if device.torch_device == "cpu":
                    torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_world_size))
                context = Context(
                    rank=self.rank,
                    local_rank=int(os.environ["LOCAL_RANK"]),
                    world_size=self.world_size,
                    local_world_size=local_world_size,
                    options=self.options,
                    sizes=sizes(torch_device=device.torch_device, simulated=device.simulated),
                    device=device,
                    at=self.at,
                )
                self.context = context
                self.tell({"simulated": device.simulated})
                for stage in STAGES:
                    self.stage(stage, context)
                if dist.is_initialized():
                    self.at("end of the process group")
                    dist.destroy_process_group()
        except LabError as error:
            self.tell({"stage": "presence", "result": {"error": str(error)}})
            for stage in STAGES:
                self.store.set(f"{stage}/{self.rank}", f"error:{error}")

    def stage(self, stage: str, context: Context) -> None:
        """Measure one stage, tell, and hear how the others fared."""
        self.at(stage)
        began = time.monotonic()
        result = self._result(stage, context)
        self.tell({"stage": stage, "result": result, "took": time.monotonic() - began})
        trouble = result.get("error") or ("" if result.get("asked") else result.get("skipped", ""))
        kind = context.device.torch_device
        self.store.set(f"{stage}/{self.rank}", f"error:{trouble}" if trouble else f"ok:{kind}")
        self.at(f"waiting for the others after {stage}")
        answers = self._answers(stage)
        if stage in DECISIVE and self.barred is None:
            self.barred = _bar(answers)

    def _answers(self, stage: str) -> list[str]:
        """What every rank says of a stage; when the run is called off, nobody waits for the one that is gone."""
        keys = [f"{stage}/{rank}" for rank in range(self.world_size)]
        while True:
            try:
                self.store.wait(keys, timedelta(seconds=1))  # real seconds, also beside a virtual GPU's clock
            except dist.DistStoreError:
                if not self.store.check(["stop"]):
                    continue
            return [self.store.get(key).decode() if self.store.check([key]) else "error:it is gone" for key in keys]

    def _result(self, stage: str, context: Context) -> dict[str, Any]:
        if stage in ("data", "training") and self.options.validation_only:
            return {"skipped": "--validation-only", "asked": True}
        if stage in TOGETHER and self.barred is not None:
            return {"skipped": self.barred}
        try:
            if stage == "collectives" and self.world_size > 1:
                self._join(context)
            return MEASURES[stage](context)
        except LabError as error:
            return {"skipped": str(error)}
        except Exception as error:
            # Whatever it is, it is what this test is for: told in the report, and the next stages go on without it.
            lines = str(error).strip().splitlines() or ["no message"]
            return {"error": f"{type(error).__name__}: {lines[0]}"}

    def _join(self, context: Context) -> None:
        self.at("meeting of all ranks")
        dist.init_process_group(
            "nccl" if context.on_gpu else "gloo",
            store=within(self.store, "ranks"),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self.patience_seconds),
        )


def _bar(answers: Sequence[str]) -> str | None:
    """Why the next stage cannot begin, if it cannot."""
    for rank, answer in enumerate(answers):
        if answer.startswith("error:"):
            return f"rank {rank} cannot take part: {answer.removeprefix('error:')}"
    if len(set(answers)) > 1:
        return "some ranks have a GPU and others have none"
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Be one rank; the watchdog has set the environment and opened the pipe."""
    words = list(sys.argv[1:] if argv is None else argv)
    inner = argparse.ArgumentParser(add_help=False)
    inner.add_argument("--pipe", type=int, required=True)
    arguments, rest = inner.parse_known_args(words)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    pipe = os.fdopen(arguments.pipe, "w", buffering=1, encoding="utf-8")
    try:
        Rank(parse(rest), lambda message: print(json.dumps(message), file=pipe, flush=True)).run()
    except dist.DistNetworkError as error:
        # The store's node is gone. The watchdog has another store, and calls the run off.
        print(f"the store is gone: {error}", file=sys.stderr)
        return STORE_GONE
    print(json.dumps({"done": True}), file=pipe, flush=True)
    return 0
