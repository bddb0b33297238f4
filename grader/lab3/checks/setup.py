"""Judges Lab 3's training on several ranks: they meet, share the data, stay equal, and leave, come what may."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradebox.course.criterion import builds_on, criterion, requires
from gradebox.run.assertions import (
    Cause,
    CheckFailed,
    number,
    numbers,
    require,
    require_arrays_close,
    require_close,
    require_equal,
)
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Seen, Submission
from gradebox.sandbox import Limits
from grader.lab3.truth.draws import require_own_draws
from grader.lab3.truth.evaluation import evaluations, require_counted, require_divided
from grader.lab3.truth.reported import TIMEOUT, require_batches, require_patience, require_said, require_told
from grader.lab3.truth.training import (
    debugging_case,
    epochs_of,
    even_case,
    require_equal_replicas,
    require_exchanged,
    require_moved_alike,
    require_shared,
    require_trained,
    steps_of,
    uneven_case,
)
from grader.shared.programs import picture_and_json

SHARES = "a DistributedSampler with this rank's number gives it its own share of every epoch"
DIFFERENT = Cause(
    "ranks_tell_different_losses",
    "the sums over all ranks belong to every rank: dist.all_reduce leaves them on each, dist.reduce on one",
    "lab3.setup.debugged_script_trains_right",
)
PORT = "task 3.5: not setup is at fault, but where train_two_heads tells it to meet; another job listens there"
PROGRAM = "lab3_distributed.ddp_training"
_WAYS = ("file", "tcp", "environment")
"""How ranks meet."""
DIGITS = 1438
"""Training images, of which each rank takes half in an epoch."""
_LEAST_CHILDREN_SECONDS = 0.01
"""Of two ranks that train; copies of this process, which import nothing, took 0.2 s and more."""
COLD = Limits(wall_seconds=180.0)
"""For new interpreters: 5 to 8 seconds on a quiet machine, a minute on one that is five times overbooked."""


@criterion("lab3.setup", early=True)
class TestSetup:
    def test_joins_and_leaves(self, submission: Submission, generator: InputGenerator) -> None:
        """Joins the process group and leaves it."""
        ranks = generator.integer(2, 3)
        for rank, seen in enumerate(submission.rank_probe("lab3.joining.join", ranks, device="cpu")):
            what = f"setup({rank}, {ranks}), meeting where MASTER_ADDR and MASTER_PORT say"
            require_equal(seen.place, [rank, ranks], what=f"{what}: rank and world size of the process group")
            require_equal(seen.sum, float(ranks), what=f"{what}: sum of ones over the ranks")
            require_equal(seen.left, True, what=f"{what}: process group gone after cleanup()")

    def test_meets_where_it_is_told(self, submission: Submission, generator: InputGenerator) -> None:
        """Meets where it is told, and waits as long as told."""
        cases = [
            {"way": way, **({} if local is None else {"local": local}), "device": device}
            for way, local, device in zip(
                generator.shuffled(_WAYS),
                generator.shuffled([None, None, [1, 0]]),
                generator.shuffled(["cpu", "cpu", None]),
                strict=True,
            )
        ]
        patience = generator.uniform(2.0, 3.0)
        seen = self._require_joined(submission, "cpu", cases, patience=patience)
        for each in seen:
            require(
                not each.left_alone,
                f"cleanup() without a process group raised {each.left_alone}",
                "leave the group only if there is one: dist.is_initialized()",
            )
            for what, refused in each.refused.items():
                hint = "ranks count from 0 to world_size - 1"
                if "MASTER" in what:
                    hint = "there is no default port: two jobs on one machine would take the same"
                require(refused, f"setup() {what} raised no ValueError", hint)
        waited = seen[0].waited
        passed = f"it raised after {waited:.1f} s" if waited else "it was still waiting after three times as long"
        require(
            waited is not None and 0.5 * patience <= waited,
            f"setup(..., timeout_seconds={patience:.1f}), and a collective to which rank 1 does not come: {passed}",
            TIMEOUT if waited is None else "init_process_group takes a timeout",
        )
        given: list[dict[str, Any]] = [{"device": "cuda"}, {"device": "cpu"}, {"device": None}]
        if submission.device.simulated:
            given.append({"device": "cuda", "gpus": 1})
        ways, places = generator.shuffled(_WAYS * 2), generator.shuffled([{}, {"local": [1, 0]}] * 2)
        given = [
            {"way": way, **place, **case}
            for way, place, case in zip(ways, places, generator.shuffled(given), strict=False)
        ]
        self._require_joined(submission, submission.device.name, given)

    def test_nccl_on_gpus(self, submission: Submission, generator: InputGenerator) -> None:
        """Uses NCCL where every rank has a GPU."""
        swapped: dict[str, Any] = {"local": [1, 0]}
        cases: list[dict[str, Any]] = generator.shuffled([{}, swapped])
        if submission.device.simulated:
            cases += [{"gpus": 1}, {"gpus": 1, **swapped}]
            cases.append({"gpus": 1, "local": [0, 0], "machine": 1})  # two machines, both full
        cases = [{"way": "environment", "device": None, **case} for case in cases]
        first = self._require_joined(submission, submission.device.name, cases)[0]
        if submission.device.simulated:  # in turn: 0, 1, and 0 again
            local = generator.shuffled([{}, {"local": [2, 0, 1]}])[0]
            few = {"way": "environment", "device": None, "gpus": 2, **local}
            self._require_joined(submission, submission.device.name, [few], 3)
        if first.gpus:
            self._require_trained_there(submission, generator, first.gpus)

    @staticmethod
    def _require_joined(
        submission: Submission, device: str, cases: list[dict[str, Any]], ranks: int = 2, *, patience: float = 0.0
    ) -> list[Seen]:
        kind = "cpu" if device == "cpu" else "cuda"
        everybody = submission.rank_probe(
            "lab3.joining.setup", ranks, device=device, kind=kind, cases=cases, patience=patience
        )
        for rank, seen in enumerate(everybody):
            for case, joined in zip(cases, seen.seen, strict=True):
                gpus, here = case.get("gpus", seen.gpus), case.get("machine", ranks)
                on_gpu = case["device"] == "cuda" or (case["device"] is None and gpus > 0)
                backend = "nccl" if on_gpu and gpus >= here else "gloo"
                local = case["local"][rank] if "local" in case else rank
                asked = "" if case["device"] is None else f", device={case['device']!r}"
                what = f"setup({rank}, {ranks}{asked}), meeting by {case['way']}"
                if "local" in case:
                    what += f", LOCAL_RANK={local}"
                if "machine" in case:
                    what += f", LOCAL_WORLD_SIZE={case['machine']}"
                if "gpus" in case:
                    what += f", {gpus} GPU{'s' * (gpus > 1)} on the machine"
                require_equal(joined["place"], [rank, ranks], what=f"{what}: rank and world size of the process group")
                require_equal(joined["sum"], float(ranks), what=f"{what}: sum of ones over the ranks")
                require_equal(joined["left"], True, what=f"{what}: process group gone after cleanup()")
                hint = "nccl needs a GPU per rank" if on_gpu else "nccl is for ranks that compute on GPUs"
                require_equal(joined["backend"], backend, what=f"{what}: backend", hint=hint)
                own = f"cuda:{local % gpus}" if on_gpu else "cpu"
                hint = "each rank has its own: LOCAL_RANK counts the ranks of this machine, rank those of all"
                if here > gpus:
                    hint = "with fewer GPUs than ranks these take turns: after the last GPU comes the first again"
                require_equal(joined["device"], own, what=f"{what}: device it returned", hint=hint)
                if on_gpu:
                    require_equal(joined["current"], local % gpus, what=f"{what}: current GPU")
        return everybody

    @staticmethod
    def _require_trained_there(submission: Submission, generator: InputGenerator, gpus: int) -> None:
        given = uneven_case(generator, ranks=2)
        seen = given.train(submission, device=submission.device.name, kind="cuda")
        for rank, each in enumerate(seen):
            what = f"train() on 2 ranks with device='cuda', rank {rank}"
            require_equal(each.place, f"cuda:{rank % gpus}", what=f"{what}: where its model is afterwards")
            require_equal(each.result["device"], "cuda", what=f"{what}: DdpTraining.device")
            backend = "nccl" if gpus >= 2 else "gloo"
            require_equal(each.result["backend"], backend, what=f"{what}: DdpTraining.backend")

    def test_replicas_equal(self, submission: Submission, generator: InputGenerator) -> None:
        """Begins and goes on with equal replicas."""
        given = even_case(generator)
        seen = given.train(submission)
        hint = "ranks begin with other weights; DistributedDataParallel hands out rank 0's, if it wraps what is trained"
        names = ("weight", "shift")
        require_equal_replicas(seen, what="train() on 2 ranks", hint=hint, names=names, rtol=given.rtol)
        shift = np.asarray(given.shifts[0], dtype=np.float64)
        require_arrays_close(seen[0].shift, shift, rtol=1e-6, what="train() on 2 ranks: rank 0's buffer", hint=hint)
        require_exchanged(seen, what="train() on 2 ranks")
        expected, _ = given.follow(seen)
        require_moved_alike(seen, given.weights[0], expected, what="train() on 2 ranks")

    def test_gradients_equal_full_batch(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains on the mean gradient of all ranks."""
        given = even_case(generator)
        seen = given.train(submission)
        expected, _ = given.follow(seen)
        require_exchanged(seen, what="train() on 2 ranks")
        with given.recognised(seen):
            require_trained(
                seen,
                expected,
                what=f"train() on 2 ranks, {len(steps_of(seen))} steps of SGD from rank 0's weights",
                hint="each step follows the mean gradient over the batches of all ranks, with the learning rate given",
                rtol=given.rtol,
            )

    @requires("gradients_equal_full_batch")
    @builds_on("nccl_on_gpus")
    def test_training_reported(self, submission: Submission, generator: InputGenerator) -> None:
        """Tells how the training went."""
        alone = submission.probe("lab3.training.on_cpu", device="cpu")
        require_equal(alone.device, "cpu", what='device that train(device="cpu") tells, on a machine that has a GPU')
        require_equal(alone.without_tests, None, what="accuracy that train(dataset=...) tells, without a test_dataset")
        for given, (share, truth) in alone.accuracies.items():
            what = f"accuracy that train() tells, of its data sets {given} given"
            hint = "without a dataset: that of test_dataset, else of the test images of digits (split='test')"
            require_close(number(share, what, hint), truth, relative=1e-6, what=what, hint=hint)
        for given in (even_case(generator), uneven_case(generator)):
            seen = given.train(submission)
            with given.recognised(seen):
                require_told(given, seen, what=f"train() on {given.ranks} ranks")

    def test_shards_disjoint_and_complete(self, submission: Submission, generator: InputGenerator) -> None:
        """Shares out all samples among the ranks."""
        for given in (even_case(generator), uneven_case(generator)):
            seen, what = given.train(submission), f"train() on {given.ranks} ranks"
            self._require_shards(seen, given.samples, given.arguments["epochs"], what)
            hint = "batch_size is that of each rank, whatever the world size"
            require_batches(seen, given.samples, given.arguments, what=what, hint=hint)

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

    @builds_on("shards_disjoint_and_complete")
    def test_reshuffled_each_epoch(self, submission: Submission, generator: InputGenerator) -> None:
        """Shuffles the samples anew in each epoch."""
        given = even_case(generator)
        seen, epochs = given.train(submission), given.arguments["epochs"]
        for rank, each in enumerate(seen):
            shares = epochs_of(each, epochs)
            what = f"train(), rank {rank}"
            hint = "tell the sampler which epoch it is: sampler.set_epoch(epoch)"
            orders = {tuple(share) for share in shares}
            require(len(orders) == len(shares), f"{what}: the same samples in the same order in two epochs", hint)
            members = {frozenset(share) for share in shares}
            require(len(members) == len(shares), f"{what}: the same share of the samples in two epochs", hint)
        for rank, each in enumerate(seen):
            first = epochs_of(each, epochs)[0]
            shares = [
                [number for batch in training["samples"][: len(each.samples) // epochs] for number in batch]
                for training in each.again
            ]
            what = f"train(), rank {rank}: the first epoch's share"
            require(
                all(shares),
                f"train(), rank {rank}: a model that was in evaluation mode before was not trained in training mode",
                "model.train() before the first epoch",
            )
            hint = "shares follow from seed and epoch alone: DistributedSampler has a seed of its own"
            require(set(shares[0]) == set(first), f"{what} differs in two trainings with the same seed", hint)
            require(set(shares[1]) != set(first), f"{what} is the same with another seed", hint)
        require_own_draws(given, seen)

    @builds_on("training_reported")
    def test_evaluates_each_sample_once(self, submission: Submission, generator: InputGenerator) -> None:
        """Evaluates each sample once."""
        for ranks, cases in evaluations(generator).items():
            rights = [case.pop("right") for case in cases]
            device = submission.device.name
            kind = "cpu" if device == "cpu" else "cuda"
            seen = submission.rank_probe("lab3.training.evaluate", ranks, device=device, cases=cases, kind=kind)
            for index, (case, right) in enumerate(zip(cases, rights, strict=True)):
                self._require_evaluated([each.cases[index] for each in seen], right, case["batch_size"])
            for each in seen:
                require(each.refused, "evaluate() of no samples raised no ValueError")

    @staticmethod
    def _require_evaluated(seen: list[Any], right: Any, batch: int) -> None:
        samples = right.shape[1]
        what = f"evaluate() of {samples} samples, batch_size={batch}"
        for call, model in enumerate(("a replicated", "a plain")):
            those = f"{what} by {model} model on {len(seen)} ranks"
            require_counted([each["together"][call] for each in seen], right, those)
            require_divided([each["together"][call] for each in seen], samples, batch, those)
        for rank, each in enumerate(seen):
            require_counted([each["alone"]], right[rank : rank + 1], f"{what} without a process group")
            for calls in (*each["together"], each["alone"]):
                require(
                    calls["quiet"],
                    f"{what}: a forward pass was not in evaluation mode, or with gradients",
                    "model.eval(), which reaches every part, and torch.no_grad() around the loop",
                )
                require(
                    calls["modes_kept"],
                    f"{what}: afterwards a part of the model was in another mode than before",
                    "note the mode of each of model.modules(), and put it back: train() changes them all",
                )

    @builds_on("joins_and_leaves")
    def test_fails_cleanly(self, submission: Submission, generator: InputGenerator) -> None:
        """Ends on all ranks when one of them fails."""
        given = even_case(generator)
        mark = f"damaged in block {generator.integer(10**5, 10**6)}"
        seen = given.train(submission, broken=generator.integer(0, given.samples - 1), damage=mark, again=[])
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
        require_patience(even_case(generator).train(submission), what="train()")
        left = [not each.in_group for each in seen]
        require_equal(left, [True, True], what="process group left by each rank after an error", hint="finally:")

    def test_started_by_spawn(self, submission: Submission, generator: InputGenerator) -> None:
        """Runs when it spawns its processes itself."""
        asked = ["--device", "vgpu:T4", "--world-size", "2"]
        seen, what = self._started(submission, generator, "lab3.launch.program", asked)
        require(
            seen.children_seconds > _LEAST_CHILDREN_SECONDS,
            f"{what} started no processes that did anything: together they took {seen.children_seconds:.3f} s",
            "run_ranks starts a process for each rank",
        )

    def test_started_by_torchrun(self, submission: Submission, generator: InputGenerator) -> None:
        """Runs under torchrun."""
        asked = ["--device", "cpu", "--world-size", "3"]  # torchrun knows better
        seen, what = self._started(submission, generator, "lab3.launch.torchrun", asked, machines=2)
        require(seen.tables <= 1, f"{what} printed its table {seen.tables} times", "rank 0 alone prints and writes")

    @staticmethod
    def _started(
        submission: Submission, generator: InputGenerator, probe: str, asked: list[str], **options: Any
    ) -> tuple[Seen, str]:
        """The program trained with arguments that nobody knows beforehand; fails unless it tells of that training."""
        even_case(generator).train(submission)  # asked already: what does not end there does not end here
        epochs, batch = generator.integer(2, 3), generator.integer(24, 48)
        asked = [*asked, "--epochs", str(epochs), "--batch-size", str(batch)]
        how = "torchrun, one rank on each of two machines, -m" if options else "python -m"
        what = f"{how} labs.{PROGRAM} {' '.join(asked)}"
        seen = submission.probe(probe, device="cpu", limits=COLD, module=PROGRAM, arguments=asked, **options)
        if options and seen.exit_code is None:
            raise CheckFailed(
                f"{what}: its two processes waited for each other and did not end",
                "which of all processes this one is says RANK, and of how many WORLD_SIZE; LOCAL_RANK counts on one "
                "machine, and is 0 on both here",
            )
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
        require_said(seen, simulated="vgpu" in " ".join(asked), what=what)
        return seen, what

    def test_debugged_script_ends(self, submission: Submission, generator: InputGenerator) -> None:
        """Brings the debugged script to its end."""
        given = debugging_case(generator)
        try:
            seen = given.train(submission, function="lab3_distributed.ddp_debugging.train_two_heads")
        except CheckFailed as failed:
            if "address already in use" in failed.message:
                raise CheckFailed(failed.message, PORT) from failed
            raise
        steps_of(seen)
        require_patience(seen, what="train_two_heads()")
        for rank, each in enumerate(seen):
            numbers(each.result["losses"], given.arguments["epochs"], f"losses of train_two_heads() on rank {rank}")
        self._require_same_losses(seen)

    @staticmethod
    def _require_same_losses(seen: list[Seen]) -> None:
        first, second = (each.result["losses"] for each in seen)
        require(
            first == second,
            f"train_two_heads(): the ranks tell different losses, rank 0 {first} and rank 1 {second}",
            DIFFERENT,
        )

    @requires("debugged_script_ends")
    def test_debugged_script_trains_right(self, submission: Submission, generator: InputGenerator) -> None:
        """Trains right in the debugged script."""
        given = debugging_case(generator)
        seen = given.train(submission, function="lab3_distributed.ddp_debugging.train_two_heads")
        epochs, what = given.arguments["epochs"], "train_two_heads() on 2 ranks"
        self._require_shards(seen, given.samples, epochs, what)
        for rank, each in enumerate(seen):
            shares = {frozenset(share) for share in epochs_of(each, epochs)}
            require(len(shares) == epochs, f"{what}: rank {rank} had the same share in two epochs", SHARES)
        require_batches(seen, given.samples, given.arguments, what=what, hint=SHARES)
        expected, _ = given.follow(seen)
        require_exchanged(seen, what=what)
        hint = "call the wrapper, not the module inside: its forward prepares the exchange of gradients"
        require_trained(seen, expected, what=what, hint=hint)
        self._require_same_losses(seen)
        require_told(given, seen, what=what)
