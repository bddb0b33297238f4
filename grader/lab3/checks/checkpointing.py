"""Judges Lab 3's checkpoints: written once and as a whole, loaded anywhere, and nothing lost by going on from one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradebox.course.criterion import criterion
from gradebox.run.assertions import CheckFailed, numbers, require, require_arrays_close, require_close, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from grader.lab3.truth.training import RTOL

_LEAST_BYTES = 4
"""Of a parameter in float64, even where a file is compressed."""
_NAMES = {"count": "buffer of whole numbers", "rates": "learning rates of the optimizer's groups"}
_LEARNED = 0.7
"""Loss after training / loss of a model that says 0, where the targets can be learned: 0.43 was the most in a thousand
trainings, with dropout of a half."""


def network(generator: InputGenerator, name: str) -> dict[str, Any]:
    """Weights and inputs of a small network, whose checkpoint has some ten thousand bytes; others for each `name`."""
    sizes, generator = generator.shared("lab3.network"), generator.shared(name)
    features, hidden = sizes.odd(31, 39), sizes.odd(31, 39)
    return {
        "first": generator.normal(hidden, features) / np.float32(features**0.5),
        "second": generator.normal(features, hidden) / np.float32(hidden**0.5),
        "inputs": generator.normal(5, features),
    }


_EITHER: dict[str, Sequence[bool]] = dict.fromkeys(("path_object", "adam", "frozen"), (False, True))
"""What saved models differ in: of the two of a grading one is always what the other is not."""
_Kind = dict[str, Any]


def kind_of(generator: InputGenerator, *, replicated: bool) -> _Kind:
    """How the path is given, and of what sort optimizer and model are."""
    (row,) = generator.shared("lab3.saved").cases(_EITHER, 1)
    return {name: value == replicated for name, value in row.items()}


def saved(submission: Submission, generator: InputGenerator, *, replicated: bool) -> tuple[list[Seen], int]:
    """What two ranks saw when they saved, and the number of the epoch."""
    epoch = generator.shared("lab3.save").integer(3, 30)
    case = network(generator, "lab3.save")
    rate = generator.shared("lab3.rate").uniform(0.01, 0.02)
    kind = kind_of(generator, replicated=replicated)
    seen = submission.rank_probe(
        "lab3.checkpoints.save", 2, device="cpu", **case, **kind, epoch=epoch, rate=rate, replicated=replicated
    )
    return seen, epoch


@criterion("lab3.checkpointing")
class TestCheckpointing:
    def test_rank_zero_alone_writes(self, submission: Submission, generator: InputGenerator) -> None:
        """Writes the checkpoint on rank 0 alone."""
        (first, second), _ = saved(submission, generator, replicated=True)
        require_equal(
            first.files,
            ["checkpoint.pt"],
            what="files in rank 0's folder after save_checkpoint('checkpoint.pt', ...) on 2 ranks, twice",
            hint="one file; what is written for the time being is gone in the end",
        )
        least = _LEAST_BYTES * first.parameters.size
        require(
            len(first.content) >= least,
            f"save_checkpoint('checkpoint.pt', ...): the file has {len(first.content)} bytes, fewer than the {least} "
            f"that {first.parameters.size} parameters take at least",
        )
        require_equal(
            second.files,
            [],
            what="files that rank 1 made in save_checkpoint() (here each rank has a working folder of its own)",
            hint="the replicas are equal; two ranks that write one file spoil it",
        )

    def test_every_rank_waits_for_the_file(self, submission: Submission, generator: InputGenerator) -> None:
        """Waits on every rank for the file."""
        seen, _ = saved(submission, generator, replicated=True)
        for rank, each in enumerate(seen):
            require(
                each.complete,
                f"save_checkpoint(), over an old file, returned on rank {rank} before rank 0 had written it anew",
                "a barrier after writing, on every rank: who loads too early reads an old file or none",
            )
        for rank, each in enumerate(seen):
            require(
                not each.returned_without_a_file,
                f"save_checkpoint() returned on rank {rank} although rank 0's disk was full and there is no new file",
                "who goes on believes that the file is there: let rank 0's error through before the others are told "
                "that it is done, or tell them of it",
            )

    def test_saved_atomically(self, submission: Submission, generator: InputGenerator) -> None:
        """Saves a checkpoint as a whole or not at all."""
        seen = submission.probe("lab3.checkpoints.interrupted", device="cpu", **network(generator, "lab3.interrupted"))
        require(seen.failed, "save_checkpoint() said nothing although the disk was full in the middle of writing")
        require(
            not seen.unread,
            f"load_checkpoint() of what save_checkpoint() has just written, without an optimizer: {seen.unread}",
            "nothing has failed before: it is the loading",
        )
        if seen.loaded:
            raise CheckFailed(
                f"after a save that failed half-way, the file from before cannot be loaded: {seen.loaded}",
                "write to a temporary file in the same folder, then os.replace() it",
            )
        require_equal(seen.epoch, 1, what="epoch in the file after a save that failed")
        require_arrays_close(seen.parameters, seen.saved, rtol=0, what="parameters in the file after a failed save")
        require(
            not seen.refused_there,
            f"save_checkpoint() into /dev/shm, which is another file system than that of /tmp: {seen.refused_there}",
            "nothing can be moved from one disk to another at once: write the temporary file into the same folder",
        )
        require(
            not (seen.overwritten or seen.overwritten_there),
            "save_checkpoint() opened the file that was there for writing, so a crash at that moment destroys it",
            "os.replace() puts a new file in place at once if both lie in one folder; moving between disks copies",
        )
        require(
            not seen.taken_away,
            "save_checkpoint() removed or renamed the file that was there before the new one was in its place",
            "os.replace() takes the place of the old file by itself: there is no moment without one",
        )
        require(
            not seen.left,
            f"save_checkpoint() left {', '.join(seen.left)} when the disk was full in the middle of writing: "
            "expected no file that was not there before",
            "what was begun is removed when an error passes (try, finally): a full disk needs the room",
        )

    def test_loads_with_and_without_ddp(self, submission: Submission, generator: InputGenerator) -> None:
        """Loads into models with and without DDP."""
        for replicated in (True, False):
            (source, _), epoch = saved(submission, generator, replicated=replicated)
            kind = kind_of(generator, replicated=replicated)
            paths = generator.shuffled([True, False])
            for (ranks, wrapped), path_object in zip(((1, False), (3, True)), paths, strict=True):
                was = "from DistributedDataParallel" if replicated else "from a plain module"
                into = f"into DistributedDataParallel on {ranks} ranks" if wrapped else "into a plain module"
                what = f"saved {was} on 2 ranks, loaded {into}" + ", one layer frozen" * kind["frozen"]
                own = {**kind, "path_object": path_object}
                self._require_loaded(submission, generator, source, epoch, ranks, wrapped, own, what)
        if submission.device.name != "cpu":
            case = network(generator, "lab3.save")
            gpu = submission.probe("lab3.checkpoints.save_on_a_gpu", **case)
            cpu = submission.probe("lab3.checkpoints.load_on_a_cpu", device="cpu", content=gpu.content, **case)
            require_arrays_close(
                cpu.parameters, gpu.parameters, rtol=0, what="saved on a GPU, loaded on a CPU: parameters"
            )

    @staticmethod
    def _require_loaded(
        submission: Submission,
        generator: InputGenerator,
        source: Seen,
        epoch: int,
        ranks: int,
        wrapped: bool,
        kind: _Kind,
        what: str,
    ) -> None:
        loaded = submission.rank_probe(
            "lab3.checkpoints.load",
            ranks,
            device="cpu",
            content=source.content,
            **network(generator, "lab3.load"),
            **kind,
            replicated=wrapped,
        )
        names = {**_NAMES, "momentum": "averages of Adam"} if kind["adam"] else _NAMES
        for rank, each in enumerate(loaded):
            for name in ("parameters", "buffer", "count", "momentum", "rates"):
                require_arrays_close(
                    each[name],
                    source[name],
                    rtol=0,
                    what=f"{what}, rank {rank}: {names.get(name, name)}",
                    hint="the optimizer's state belongs to the checkpoint as well: state_dict() has all of it"
                    if name in ("momentum", "rates")
                    else "save and load the module that DistributedDataParallel wraps: its names have no 'module.'",
                )
            require(
                each.in_place,
                f"{what}, rank {rank}: the model has other parameters or buffers than before, which no optimizer knows",
                "load_state_dict() overwrites their values",
            )
            require_arrays_close(each.model_only, source.parameters, rtol=0, what=f"{what}, no optimizer: parameters")
            require_equal(each.epoch, epoch, what=f"{what}: epochs completed, as load_checkpoint() told")
            if ranks > 1:
                continue
            for which, refused in each.refused.items():
                require(
                    refused,
                    f"{what}: no RuntimeError from a model {which}",
                    "load_state_dict is strict by default; with strict=False nothing fits and nothing is said",
                )
            require(each.missing, "load_checkpoint() of a file that is not there raised no OSError")

    def test_continues_as_if_never_stopped(self, submission: Submission, generator: InputGenerator) -> None:
        """Goes on as if it had never stopped."""
        features, outputs, samples = generator.odd(5, 9), generator.integer(3, 4), 2 * generator.odd(13, 17)
        arguments = {
            "batch_size": 4,
            "learning_rate": generator.uniform(0.005, 0.01),
            "momentum": 0.9,
            "seed": generator.integer(1, 99),
        }
        epochs, stop = 5, generator.integer(2, 3)
        inputs = generator.normal(samples, features)
        targets = np.float32(3) * (inputs @ generator.normal(features, outputs)) + generator.normal(samples, outputs)
        data: dict[str, Any] = {"inputs": inputs, "targets": targets, "arguments": arguments, "device": "cpu"}
        weights = generator.normal(4, outputs, features)
        path_objects = [False, *generator.shuffled([True, False]), generator.integer(0, 1) == 1]
        whole_runs, stopped_runs = (
            submission.rank_probe(
                "lab3.checkpoints.resume",
                2,
                weights=weights,
                until=[until],
                checkpointed=checkpointed,
                path_objects=path_objects[:1],
                **data,
            )
            for until, checkpointed in ((epochs, False), (stop, True))
        )
        seen = submission.rank_probe(
            "lab3.checkpoints.resume",
            2,
            weights=weights[1:],
            until=[epochs, epochs, stop],
            checkpointed=True,
            path_objects=path_objects[1:],
            content=np.asarray(stopped_runs[0].content),
            **data,
        )
        for rank, each in enumerate(seen):
            whole, stopped = whole_runs[rank], stopped_runs[rank]
            resumed, complete, fewer = each.runs
            steps = whole.runs[0]["batches"] // epochs
            what = f"train() on 2 ranks, stopped after {stop} of {epochs} epochs and started again with its checkpoint"
            require_equal(
                resumed["batches"],
                steps * (epochs - stop),
                what=f"{what}: steps that rank {rank} then made",
                hint="epochs counts those before the checkpoint, too",
            )
            expected = np.asarray(self._weight(whole, 0), dtype=np.float64)
            learned = float(((inputs @ expected.T - targets) ** 2).sum() / (targets**2).sum())
            require(
                learned < _LEARNED,
                f"train() on 2 ranks, {epochs} epochs without a break: the loss of rank {rank} is {learned:.3g} "
                "times that of one that says 0, so nothing was learned that could be lost",
                "the model that is passed in is trained, in place",
            )
            require_arrays_close(
                self._weight(each, 0),
                expected,
                rtol=RTOL,
                atol=RTOL,
                what=f"{what}: weights of rank {rank}, against {epochs} epochs without a break",
                hint="model, optimizer (momentum), number of the epoch (it shuffles by it), random numbers (dropout)",
            )
            for done in (complete, fewer):
                require_equal(done["batches"], 0, what="steps made from a checkpoint whose training was complete")
            require_equal(
                [run["epochs"] for run in (*whole.runs, *stopped.runs, *each.runs)],
                [epochs, stop, epochs, epochs, epochs],
                what=f"DdpTraining.epochs of {epochs} epochs, of {stop}, of those gone on with to {epochs}, and of "
                f"{epochs} and {stop} where {epochs} are done already",
                hint="epochs that the model has seen in all",
            )
            require_equal(
                [run["steps"] for run in each.runs],
                [steps * (epochs - stop), 0, 0],
                what=f"{what}: DdpTraining.optimizer_steps on rank {rank}, then of runs with nothing left to do",
                hint="those of this run",
            )
            last = numbers(
                resumed["losses"], epochs - stop, f"{what}: DdpTraining.losses on rank {rank}", "of this run"
            )
            for told, loss in zip(last, whole.runs[0]["losses"][stop:], strict=True):
                require_close(told, loss, relative=1e-6, what=f"{what}: DdpTraining.losses on rank {rank}")
            require_equal(
                [stopped.runs[0]["versions"], resumed["versions"]],
                [stop, epochs - stop + 1],
                what=f"versions of the checkpoint that rank {rank} saw in its forward passes and at the end, in {stop} "
                f"epochs and in the {epochs - stop} that followed",
                hint="written after every epoch: a training may be killed at any moment",
            )

    @staticmethod
    def _weight(seen: Seen, run: int) -> Any:
        return seen[f"runs/{run}/weight"]
