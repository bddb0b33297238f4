"""Judges Lab 3's training on several ranks: they meet, share the data, stay equal, and leave, come what may."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from gradebox.assertions import CheckFailed, numbers, require, require_arrays_close, require_close, require_equal
from gradebox.criterion import criterion, requires
from gradebox.fresh import Fresh
from gradebox.sandbox import Limits
from gradebox.submission import Seen, Submission
from grader.lab3.truth.evaluation import evaluation, require_counted
from grader.lab3.truth.training import (
    case,
    debugging_case,
    epochs_of,
    even_case,
    require_equal_replicas,
    require_exchanged,
    require_moved_alike,
    require_shared,
    require_trained,
    steps_of,
)
from grader.shared.programs import picture_and_json

SHARES = "a DistributedSampler with this rank's number gives it its own share of every epoch"
PORT = "task 3.5: not setup is at fault, but where train_two_heads tells it to meet; another job listens there"
PROGRAM = "lab3_distributed.ddp_training"
DIGITS = 1438
"""Training images, of which each rank takes half in an epoch."""
_LEAST_CHILDREN_SECONDS = 0.01
"""Of two ranks that train; copies of this process, which import nothing, took 0.2 s and more."""
COLD = Limits(wall_seconds=180.0)
"""For new interpreters: 5 to 8 seconds on a quiet machine, a minute on one that is five times overbooked."""


@criterion("lab3.setup")
class TestSetup:
    def test_joins_and_leaves(self, submission: Submission) -> None:
        """Joins the process group and leaves it."""
        self._require_joined(submission, "cpu", "cpu")

    @requires("joins_and_leaves")
    def test_nccl_on_gpus(self, submission: Submission) -> None:
        """Uses NCCL where every rank has a GPU."""
        self._require_joined(submission, submission.device.name, "cuda")

    @staticmethod
    def _require_joined(submission: Submission, device: str, kind: str) -> None:
        ways = ["file", "tcp", "environment"] if kind == "cpu" else ["file"]
        for rank, seen in enumerate(
            submission.rank_probe("lab3.training.setup", 2, device=device, kind=kind, ways=ways)
        ):
            backend = "nccl" if kind == "cuda" and seen.gpus >= 2 else "gloo"
            for way, joined in zip(ways, seen.seen, strict=True):
                what = f"setup({rank}, 2, device={kind!r}), meeting by {way}"
                require_equal(joined["place"], [rank, 2], what=f"{what}: rank and world size of the process group")
                require_equal(joined["sum"], 2.0, what=f"{what}: sum of ones over the ranks")
                require_equal(joined["left"], True, what=f"{what}: process group gone after cleanup()")
                require_equal(joined["backend"], backend, what=f"{what}: backend", hint="nccl needs a GPU per rank")
                own = f"cuda:{rank % seen.gpus}" if kind == "cuda" else "cpu"
                require_equal(joined["device"], own, what=f"{what}: device it returned", hint="each rank has its own")
                if kind == "cuda":
                    require_equal(joined["current"], rank % seen.gpus, what=f"{what}: current GPU")
            if kind == "cpu":
                no_place, no_rank = seen.refused
                require(
                    no_place,
                    "setup() without init_method, MASTER_ADDR and MASTER_PORT raised no ValueError",
                    "there is no default port: two jobs on one machine would take the same",
                )
                require(no_rank, "setup(2, 2) raised no ValueError", "ranks count from 0 to world_size - 1")

    def test_replicas_equal(self, submission: Submission, fresh: Fresh) -> None:
        """Begins and goes on with equal replicas."""
        given = even_case(fresh)
        seen = given.train(submission)
        hint = "ranks begin with other weights; DistributedDataParallel hands out rank 0's, if it wraps what is trained"
        require_equal_replicas(seen, what="train() on 2 ranks", hint=hint, names=("weight", "shift"))
        shift = np.asarray(given.shifts[0], dtype=np.float64)
        require_arrays_close(seen[0].shift, shift, rtol=1e-6, what="train() on 2 ranks: rank 0's buffer", hint=hint)
        require_exchanged(seen, what="train() on 2 ranks")
        expected, _ = given.follow(seen)
        require_moved_alike(seen, given.weights[0], expected, what="train() on 2 ranks")

    def test_gradients_equal_full_batch(self, submission: Submission, fresh: Fresh) -> None:
        """Trains on the mean gradient of all ranks."""
        given = even_case(fresh)
        seen = given.train(submission)
        steps = steps_of(seen)
        expected, losses = given.follow(seen)
        require_exchanged(seen, what="train() on 2 ranks")
        require_trained(
            seen,
            expected,
            what=f"train() on 2 ranks, {len(steps)} steps of SGD from rank 0's weights",
            hint="each step follows the mean gradient over the batches of all ranks, with the learning rate given",
        )
        epochs = given.arguments["epochs"]
        for rank, each in enumerate(seen):
            told = each.result
            told_losses = numbers(told["losses"], epochs, f"DdpTraining.losses on rank {rank}")
            require_equal(told["optimizer_steps"], len(steps), what=f"DdpTraining.optimizer_steps on rank {rank}")
            require_equal(
                told["effective_batch_size"],
                given.ranks * given.arguments["batch_size"],
                what="DdpTraining.effective_batch_size with 2 ranks",
            )
            for epoch, loss in enumerate(told_losses):
                part = slice(epoch * len(steps) // epochs, (epoch + 1) * len(steps) // epochs)
                sizes = np.array([len(numbers) for numbers in steps[part]])
                require_close(
                    loss,
                    float((np.array(losses[part]) * sizes).sum() / sizes.sum()),
                    relative=1e-6,
                    what=f"DdpTraining.losses[{epoch}] on rank {rank}",
                    hint="the mean over all samples on all ranks: sum up losses times samples, reduce, divide",
                )

    def test_shards_disjoint_and_complete(self, submission: Submission, fresh: Fresh) -> None:
        """Shares out all samples among the ranks."""
        given = even_case(fresh)
        self._require_shards(
            given.train(submission), len(given.inputs), given.arguments["epochs"], "train() on 2 ranks"
        )
        uneven = case(
            fresh,
            ranks=3,
            samples=12 * fresh.integer(1, 2)
            + 1,  # unless they are filled up, one rank has a batch more than the others
            epochs=1,
            batch_size=4,
            learning_rate=0.03,
            momentum=0.0,
        )
        self._require_shards(uneven.train(submission), len(uneven.inputs), 1, "train() on 3 ranks")

    @staticmethod
    def _require_shards(seen: list[Seen], samples: int, epochs: int, what: str) -> None:
        shares = [epochs_of(each, epochs) for each in seen]
        for epoch in range(epochs):
            require_shared(
                [share[epoch] for share in shares],
                samples,
                what=f"{what}, epoch {epoch}",
                hint=SHARES + "; nothing is dropped",
            )

    def test_reshuffled_each_epoch(self, submission: Submission, fresh: Fresh) -> None:
        """Shuffles the samples anew in each epoch."""
        given = even_case(fresh)
        seen = given.train(submission)
        for rank, each in enumerate(seen):
            shares = epochs_of(each, given.arguments["epochs"])
            what = f"train(), rank {rank}"
            hint = "tell the sampler which epoch it is: sampler.set_epoch(epoch)"
            orders = {tuple(share) for share in shares}
            require(len(orders) == len(shares), f"{what}: the same samples in the same order in two epochs", hint)
            members = {frozenset(share) for share in shares}
            require(len(members) == len(shares), f"{what}: the same share of the samples in two epochs", hint)
        draws = [each.draws for each in seen]
        require(
            draws[0] != draws[1],
            "train(): the model drew the same random numbers (dropout) on both ranks",
            "seed the random numbers by the rank, too; weights are made equal by DistributedDataParallel",
        )

    def test_evaluates_each_sample_once(self, submission: Submission, fresh: Fresh) -> None:
        """Evaluates each sample once."""
        for ranks, samples in ((2, fresh.shuffled([9, 13, 17])[0]), (3, fresh.shuffled([13, 16])[0])):
            given = evaluation(fresh, ranks, samples)
            right = given.pop("right")
            seen = submission.rank_probe("lab3.training.evaluate", ranks, device="cpu", batch_size=2, **given)
            what = f"evaluate() of {samples} samples"
            for call in range(2):
                require_counted([each.together[call] for each in seen], right, f"{what} on {ranks} ranks")
            for rank, each in enumerate(seen):
                require_counted([each.alone], right[rank : rank + 1], f"{what} without a process group")
                require_equal(each.training, True, what="evaluate(): model.training afterwards")

    def test_fails_cleanly(self, submission: Submission, fresh: Fresh) -> None:
        """Ends on all ranks when one of them fails."""
        given = even_case(fresh)
        mark = f"damaged in block {fresh.integer(10**5, 10**6)}"
        seen = given.train(submission, broken=fresh.integer(0, len(given.inputs) - 1), damage=mark)
        errors = [each.error for each in seen]
        ends = [f"{e['type']} ({e['message'].strip()[:100]})" if e else "no error" for e in errors]
        require(
            all(errors) and any(error["type"] == "LookupError" and mark in error["message"] for error in errors),
            f"a rank of train() met a sample that is {mark} (LookupError); rank 0 ended with {ends[0]}, rank 1 with "
            f"{ends[1]}",
            "let errors pass through; a rank that goes on without the others hides them",
        )
        waited = [end for end, error in zip(ends, errors, strict=True) if "imed out" in error["message"]]
        require(
            not waited,
            f"one rank failed, and the other waited for it as long as it was allowed to: {waited[:1]}",
            "leave the process group at once, without waiting for the others (no barrier on the way out)",
        )
        left = [not each.in_group for each in seen]
        require_equal(left, [True, True], what="process group left by each rank after an error", hint="finally:")

    @requires("gradients_equal_full_batch")
    def test_started_by_spawn(self, submission: Submission, fresh: Fresh) -> None:
        """Runs when it spawns its processes itself."""
        asked = ["--device", "cpu", "--world-size", "2"]
        seen, what = self._started(submission, fresh, "lab3.launch.program", asked)
        require(
            seen.children_seconds > _LEAST_CHILDREN_SECONDS,
            f"{what} started no processes that did anything: together they took {seen.children_seconds:.3f} s",
            "run_ranks starts a process for each rank",
        )

    @requires("gradients_equal_full_batch")
    def test_started_by_torchrun(self, submission: Submission, fresh: Fresh) -> None:
        """Runs under torchrun."""
        asked = ["--device", "cpu", "--world-size", "3"]  # torchrun knows better
        self._started(submission, fresh, "lab3.launch.torchrun", asked, processes=2)

    @staticmethod
    def _started(
        submission: Submission, fresh: Fresh, probe: str, asked: list[str], **options: Any
    ) -> tuple[Seen, str]:
        """The program trained with arguments that nobody knows beforehand; fails unless it tells of that training."""
        epochs, batch = fresh.integer(2, 3), fresh.integer(24, 48)
        asked = [*asked, "--epochs", str(epochs), "--batch-size", str(batch)]
        how = "torchrun --nproc-per-node 2 -m" if options else "python -m"
        what = f"{how} labs.{PROGRAM} {' '.join(asked)}"
        seen = submission.probe(probe, device="cpu", limits=COLD, module=PROGRAM, arguments=asked, **options)
        if options and seen.exit_code:
            raise CheckFailed(f"under torchrun the program ended with {seen.exit_code}: {seen.tail[-300:]}")
        rows = picture_and_json(seen, what)
        row = rows[0] if len(rows) == 1 and isinstance(rows[0], dict) else {}
        require(bool(row), f"{what}: the results hold {len(rows)} rows, expected one DdpTraining", "save_json")
        require_equal(row.get("world_size"), 2, what=f"{what}: world_size in {sorted(seen.json)}")
        losses = numbers(row.get("losses"), epochs, f"{what}: losses, one for each epoch")
        require(losses[-1] < losses[0], f"{what}: the loss went from {losses[0]:.4g} to {losses[-1]:.4g}")
        share = -(-DIGITS // 2)
        require_equal(row.get("effective_batch_size"), 2 * batch, what=f"{what}: effective_batch_size")
        require_equal(row.get("optimizer_steps"), epochs * -(-share // batch), what=f"{what}: optimizer_steps")
        simulated = {json.loads(text)["provenance"].get("simulated") for text in seen.json.values()}
        require_equal(simulated, {False}, what=f"{what}: provenance.simulated")
        return seen, what

    def test_debugged_script_ends(self, submission: Submission, fresh: Fresh) -> None:
        """Brings the debugged script to its end."""
        given = debugging_case(fresh)
        try:
            seen = given.train(submission, function="lab3_distributed.ddp_debugging.train_two_heads")
        except CheckFailed as failed:
            if "address already in use" in failed.message:
                raise CheckFailed(failed.message, PORT) from failed
            raise
        steps_of(seen)
        for rank, each in enumerate(seen):
            numbers(each.result["losses"], given.arguments["epochs"], f"losses of train_two_heads() on rank {rank}")
        first, second = (each.result["losses"] for each in seen)
        require_equal(first, second, what="losses of train_two_heads() on rank 0, and on rank 1")

    @requires("debugged_script_ends")
    def test_debugged_script_trains_right(self, submission: Submission, fresh: Fresh) -> None:
        """Trains right in the debugged script."""
        given = debugging_case(fresh)
        seen = given.train(submission, function="lab3_distributed.ddp_debugging.train_two_heads")
        epochs, what = given.arguments["epochs"], "train_two_heads() on 2 ranks"
        self._require_shards(seen, len(given.inputs), epochs, what)
        for rank, each in enumerate(seen):
            shares = {frozenset(share) for share in epochs_of(each, epochs)}
            require(len(shares) == epochs, f"{what}: rank {rank} had the same share in two epochs", SHARES)
        expected, _ = given.follow(seen, classes=True)
        require_exchanged(seen, what=what)
        hint = "call the wrapper, not the module inside: its forward prepares the exchange of gradients"
        require_trained(seen, expected, what=what, hint=hint)
