"""Task 3.1: train one model on several processes with DistributedDataParallel.

What Tasks 3.3 and 3.4 add, accumulation and checkpoints, stands in modules of its own and can be had from here, too.

Run: python -m labs.lab3_distributed.ddp_training --world-size 2
 or: torchrun --standalone --nproc-per-node 2 -m labs.lab3_distributed.ddp_training
"""

import contextlib
import datetime
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from labkit import data, models, program
from labkit.device import Device, open_device
from labkit.results import DdpTraining, save_json

from .accumulation import train_with_accumulation
from .checkpoints import load_checkpoint, save_checkpoint
from .ranks import run_ranks

__all__ = ["cleanup", "evaluate", "load_checkpoint", "save_checkpoint", "setup", "train", "train_with_accumulation"]

RESULTS = Path(__file__).parent / "results"
Samples = Dataset[Any]
"""Pairs (input, target) by index, with a length."""


def setup(
    rank: int,
    world_size: int,
    *,
    init_method: str | None = None,
    device: str | None = None,
    timeout_seconds: float = 600.0,
) -> torch.device:
    """Join the other ranks, and say which device is this rank's own.

    Args:
        rank: this process's number, from 0 to world_size - 1.
        world_size: number of processes.
        init_method: where the ranks meet, for example "file:///tmp/new-folder/rendezvous" or "tcp://host:port". None:
            where MASTER_ADDR and MASTER_PORT say ("env://"; torchrun sets them). There is no default port: two jobs
            that take the same one stop each other, so whoever starts the ranks chooses the place.
        device: "cpu" or "cuda"; None: "cuda" if there is a GPU.
        timeout_seconds: how long a collective waits for a rank that does not come before it raises.

    Returns:
        The device to compute on. On GPUs each rank of a machine has its own: number LOCAL_RANK if that is set, else
        `rank`; it is made the current one. Where there are fewer GPUs than ranks on the machine (LOCAL_WORLD_SIZE if
        that is set, else `world_size`), ranks share them in turn.

    The backend is "nccl" if each rank has a GPU of its own (NCCL refuses two ranks on one), else "gloo".

    Raises:
        ValueError: `rank` is not one of the job's, or neither `init_method` nor MASTER_ADDR and MASTER_PORT, of which
            both are needed, say where to meet.

    Source: https://docs.pytorch.org/docs/stable/distributed.html#initialization
    """
    # --- solution: task 3.1 ---
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of 0 to {world_size - 1}")
    if init_method is None:
        if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            raise ValueError("nobody says where the ranks meet: pass init_method, or start them with torchrun")
        init_method = "env://"
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    own, backend = torch.device("cpu"), "gloo"
    if kind == "cuda":
        gpus = torch.cuda.device_count()
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % gpus)
        backend = "nccl" if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) <= gpus else "gloo"
        torch.cuda.set_device(own)
    timeout = datetime.timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size, timeout=timeout)
    return own
    # --- end ---


def cleanup() -> None:
    """Leave the process group; harmless where there is none. Never waits for other ranks: one of them may be gone."""
    # --- solution: task 3.1 ---
    if dist.is_initialized():
        dist.destroy_process_group()
    # --- end ---


def _ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches; the next one is fetched before one is used."""
    supply = iter(batches)
    held = list(itertools.islice(supply, 1))
    for batch in supply:
        held.append(batch)
        yield held.pop(0)
    yield from held


def _settle(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def evaluate(model: nn.Module, dataset: Samples, *, device: torch.device | None = None, batch_size: int = 64) -> float:
    """Share of the samples that a classifier gets right; the ranks divide the work.

    Every sample counts once. A DistributedSampler would not do: it repeats samples until every rank has the same
    number, so that some count twice.

    Args:
        model: maps inputs [N, ...] to logits [N, classes]; replicated by DistributedDataParallel or not, the same on
            every rank. It is evaluated in evaluation mode and without gradients. Afterwards each of its modules is in
            the mode it was in before: a part that was frozen by `eval()` still is.
        dataset: all samples, the same on every rank. The ranks may have different numbers of batches to do, so the
            forward pass must not communicate: DistributedDataParallel's own may (it broadcasts buffers), the module
            inside does not.
        device: where to compute; None: where the model's parameters are.
        batch_size: samples per forward pass; the last one of a rank may have fewer.

    Returns:
        Right samples / all samples, from 0 to 1, the same on every rank. Without a process group the caller is alone
        and does everything.

    Raises:
        ValueError: there are no samples.
    """
    total = len(dataset)  # type: ignore[arg-type]
    if not total:
        raise ValueError("nothing to evaluate")
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    place = next(model.parameters()).device if device is None else device
    right = 0
    with contextlib.ExitStack() as stack:
        for part in model.modules():
            stack.callback(setattr, part, "training", part.training)
        model.eval()
        stack.enter_context(torch.inference_mode())
        own = torch.utils.data.BatchSampler(range(rank, total, ranks), batch_size, drop_last=False)
        for inputs, targets in _ahead(DataLoader(dataset, batch_sampler=own)):
            right += int(torch.count_nonzero(inner(inputs.to(place)).argmax(1) == targets.to(place)))
    counts = torch.tensor([right], device=place)
    if ranks > 1:
        dist.all_reduce(counts)
    return float(counts[0]) / total


def train(
    rank: int,
    world_size: int,
    init_method: str | None = None,
    *,
    device: str | None = None,
    model: nn.Module | None = None,
    dataset: Samples | None = None,
    test_dataset: Samples | None = None,
    criterion: Callable[[Tensor, Tensor], Tensor] | None = None,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    timeout_seconds: float = 600.0,
) -> DdpTraining:
    """Be one rank of a data-parallel training: join the others, train, leave.

    All replicas begin with the parameters and buffers of rank 0, whatever the others were initialised with. Their
    parameters stay equal: each optimizer step (`torch.optim.SGD` with `learning_rate` and `momentum`) follows the mean
    gradient over the batches of all ranks.

    In every epoch each rank goes through its own share of the samples, in batches of `batch_size`, the last of which
    may be smaller. The shares are drawn anew for each epoch, from `seed` and the number of the epoch; together they
    hold every sample once. Only if the samples cannot be divided evenly, a few (fewer than `world_size`) are drawn
    twice, so that all ranks make the same number of steps.

    Random numbers drawn by the model (dropout) differ between ranks, between epochs and between seeds. Neighbours do
    not coincide crosswise either: rank 1 in epoch 0 draws others than rank 0 in epoch 1, and seed 1 draws others than
    seed 0 does an epoch later or one rank further on. They depend on seed, epoch and rank only, so that a training
    that goes on from a checkpoint draws what it would have drawn without a break.

    Args:
        rank: this process's number. First, because torch.multiprocessing passes it first.
        world_size: number of processes.
        init_method: see `setup`, as for `device` and `timeout_seconds`.
        device: "cpu" or "cuda".
        model: trained in place, in training mode, in the dtype it has, which the inputs of `dataset` have as well;
            None: a small classifier of digits.
        dataset: the same on every rank; None: the training images of digits.
        test_dataset: evaluated at the end; None: the test images of digits if `dataset` is None as well, else no test.
        criterion: maps (outputs, targets) to the mean loss over the samples of a batch; None: cross entropy.
        epochs: in all, those before a checkpoint included.
        batch_size: samples per step on each rank.
        learning_rate: of SGD; it is not changed with the world size.
        momentum: of SGD.
        seed: of the shares and of dropout.
        checkpoint: a file, the same for every rank. If it is there at the beginning, the training goes on from it (as
            many epochs as are missing, none if it is complete); it is written after every epoch.
        timeout_seconds: how long to wait for a rank that does not come.

    Returns:
        A `DdpTraining`, the same on every rank but for `seconds`: each rank reads its own clock, from the first epoch,
        when all ranks have met, to the end of the test, checkpoints included.

    Raises:
        Exception: whatever goes wrong on this rank, unchanged. In any case this rank leaves the process group before
            `train` ends, so that the others get an error instead of waiting for it.

    Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"
        (arXiv:2006.15704); https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
    """
    with contextlib.ExitStack() as stack:
        stack.callback(cleanup)
        own = setup(rank, world_size, init_method=init_method, device=device, timeout_seconds=timeout_seconds)
        tests = test_dataset
        if dataset is None:
            dataset, tests = data.load("digits"), data.load("digits", split="test") if tests is None else tests
        loss_of = nn.functional.cross_entropy if criterion is None else criterion
        module = (models.mlp() if model is None else model).to(own)
        replica = DistributedDataParallel(module, device_ids=[own.index] if own.type == "cuda" else None)
        descent = torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=momentum)
        sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=seed)
        loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
        file = None if checkpoint is None else Path(checkpoint)
        begin = load_checkpoint(file, replica, descent) if file is not None and file.is_file() else 0

        _settle(own)
        start = time.monotonic()
        epochs_made = []
        for epoch in range(begin, epochs):
            replica.train()
            sampler.set_epoch(epoch)
            torch.manual_seed(int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0]))
            sums = np.zeros(2)
            for inputs, targets in _ahead(loader):
                mean = loss_of(replica(inputs.to(own)), targets.to(own))
                module.zero_grad(set_to_none=True)
                mean.backward()
                descent.step()
                sums += mean.item() * len(inputs), len(inputs)
            everybody = torch.from_numpy(sums).to(own)
            dist.all_reduce(everybody)
            epochs_made.append(everybody.tolist())
            if file is not None:
                save_checkpoint(file, replica, descent, epoch + 1)
        accuracy = None if tests is None else evaluate(replica, tests, device=own)
        _settle(own)
        seconds = time.monotonic() - start
        backend = dist.get_backend()
        del replica
    return DdpTraining(
        device=own.type,
        backend=str(backend),
        world_size=world_size,
        batch_size=batch_size,
        effective_batch_size=world_size * batch_size,
        epochs=max(begin, epochs),
        losses=tuple(total / samples for total, samples in epochs_made),
        optimizer_steps=len(epochs_made) * len(loader),
        accuracy=accuracy,
        seconds=seconds,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Train on digits, or on --data; print a table; write OUT/training.json and OUT/training.png.

    Started by torchrun, this process is one of the ranks, torchrun alone says how many there are (`--world-size` counts
    for nothing), and rank 0 alone prints and writes. Started by itself, it starts the ranks.

    Both files say that virtual GPUs were used, where they were: the picture with the word "simulated".

    Returns:
        0.
    """
    parser = program.make_parser(__doc__ or "", results=RESULTS)
    parser.add_argument(
        "--world-size", type=program.positive_int, default=2, metavar="N", help="ranks; not by torchrun"
    )
    parser.add_argument("--epochs", type=program.positive_int, default=5, metavar="N", help="in all")
    parser.add_argument("--batch-size", type=program.positive_int, default=32, metavar="N", help="of each rank")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="written after every epoch; goes on from it")
    data.add_options(parser)
    options = parser.parse_args(argv)
    data.load(options.data, data_dir=options.data_dir)  # one error here is better than one from each rank
    by_torchrun = dist.is_torchelastic_launched()
    world_size = int(os.environ["WORLD_SIZE"]) if by_torchrun else options.world_size
    gpus = int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun else world_size
    with open_device(options.device, gpus=gpus) as device:
        rank_of = functools.partial(
            _train_on,
            options.data,
            data_dir=options.data_dir,
            device=device.torch_device,
            epochs=options.epochs,
            batch_size=options.batch_size,
            checkpoint=options.checkpoint,
        )
        # --- solution: task 3.1 ---
        if by_torchrun:
            rank = int(os.environ["RANK"])
            training = rank_of(rank, world_size)
            if rank == 0:
                _report(training, device, options.out)
        else:
            _report(run_ranks(rank_of, world_size)[0], device, options.out)
        # --- end ---
    return 0


def _train_on(name: str, *place: Any, data_dir: Path | None, **options: Any) -> DdpTraining:
    """One rank of a training on a data set of `labkit.data`; each rank makes a model of its own."""
    if name == "digits":
        return train(*place, **options)
    dataset, tests = (data.load(name, split=split, data_dir=data_dir) for split in ("train", "test"))
    model = models.mlp(in_features=dataset[0][0].numel())
    return train(*place, model=model, dataset=dataset, test_dataset=tests, **options)


def _report(training: DdpTraining, device: Device, out: Path) -> None:
    accuracy = "-" if training.accuracy is None else f"{training.accuracy:.2%}"
    last = f"{training.losses[-1]:.4g}" if training.losses else "-"
    row = (training.world_size, training.backend, training.effective_batch_size, training.optimizer_steps)
    columns = ("ranks", "backend", "batch of all ranks", "steps", "last loss", "accuracy", "seconds")
    program.print_table("Data-parallel training", columns, [(*row, last, accuracy, f"{training.seconds:.3g}")])
    from labkit import plotting  # not at the top: it costs half a second in every rank

    figure, (axis,) = plotting.new_figure(
        f"Training loss on {training.world_size} ranks", x_label="epoch", y_label="mean loss"
    )
    first = training.epochs - len(training.losses) + 1
    axis.plot(range(first, training.epochs + 1), training.losses, "o-", color=plotting.COLORS[0])
    axis.set_xticks(range(first, training.epochs + 1))
    written = save_json(out / "training.json", [training], device.provenance())
    program.print_written(written, plotting.save_png(figure, out / "training.png"))


if __name__ == "__main__":
    sys.exit(program.run(main))
