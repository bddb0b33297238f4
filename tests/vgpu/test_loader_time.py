"""`DataLoader` in virtual time. Expectations: torch.utils.data documentation ("Multi-process data loading"), and
arithmetic of a pipeline: a worker handles its batches one after the other, the program takes them in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import vgpu

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

_ITEM_SECONDS, _BATCH, _BATCHES = 0.02, 4, 8
_BATCH_SECONDS = _ITEM_SECONDS * _BATCH


class _Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return _BATCH * _BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(_ITEM_SECONDS)
        return torch.full((3,), float(index))


class _Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, 22, step):
            time.sleep(_ITEM_SECONDS)
            yield torch.tensor(float(index))


def _epochs(
    data: Any, *, count: int = 1, step_seconds: float = 0.01, **options: Any
) -> tuple[list[float], list[torch.Tensor]]:
    """Seconds of each epoch in which the program works `step_seconds` per batch, and the batches of the last."""
    loader = DataLoader(data, batch_size=_BATCH, **options)
    seconds, batches = [], []
    for _ in range(count):
        begin, batches = time.perf_counter(), []
        for batch in loader:
            batches.append(batch)
            time.sleep(step_seconds)
        seconds.append(time.perf_counter() - begin)
    return seconds, batches


def _items(batches: list[torch.Tensor]) -> list[float]:
    return [value for batch in batches for value in batch.reshape(len(batch), -1)[:, 0].tolist()]


def test_without_workers_loading_and_computing_add_up(gpu: vgpu.VirtualGPU) -> None:
    ((seconds,), batches) = _epochs(_Slow())
    assert seconds == pytest.approx(_BATCHES * (_BATCH_SECONDS + 0.01), rel=0.01)
    assert _items(batches) == list(range(_BATCH * _BATCHES))


def test_one_worker_loads_while_the_program_computes(gpu: vgpu.VirtualGPU) -> None:
    ((seconds,), _) = _epochs(_Slow(), num_workers=1)
    assert seconds == pytest.approx(_BATCHES * _BATCH_SECONDS + 0.01, abs=0.03)


def test_four_workers_load_four_times_as_fast_as_one(gpu: vgpu.VirtualGPU) -> None:
    ((one_worker,), _) = _epochs(_Slow(), num_workers=1, step_seconds=0)
    ((four_workers,), batches) = _epochs(_Slow(), num_workers=4, step_seconds=0)
    # Starting a worker costs some hundredths of a second, as it does in reality.
    assert one_worker - 0.02 == pytest.approx(4 * (four_workers - 0.05), rel=0.05)
    assert _items(batches) == list(range(_BATCH * _BATCHES))


def test_a_program_that_computes_longer_than_loading_takes_does_not_wait(gpu: vgpu.VirtualGPU) -> None:
    ((seconds,), _) = _epochs(_Slow(), num_workers=4, step_seconds=0.1)
    assert seconds == pytest.approx(_BATCHES * 0.1 + _BATCH_SECONDS, abs=0.06)


def test_prefetching_covers_a_long_pause_of_the_program(gpu: vgpu.VirtualGPU) -> None:
    """After a pause the batches of the prefetch are there, and only those."""

    def waits(prefetch: int) -> int:
        batches = iter(DataLoader(_Slow(), batch_size=_BATCH, num_workers=1, prefetch_factor=prefetch))
        next(batches)
        time.sleep(10)
        late = 0
        for _ in range(6):
            begin = time.perf_counter()
            next(batches)
            late += time.perf_counter() - begin > _BATCH_SECONDS / 2
        return late

    # One of the batches that were asked for during the pause is on its way for each that is taken.
    assert (waits(2), waits(4)) == (4, 2)


def test_persistent_workers_start_once(gpu: vgpu.VirtualGPU) -> None:
    (again, _), (kept, _) = (
        _epochs(_Slow(), count=2, num_workers=4, persistent_workers=persistent) for persistent in (False, True)
    )
    assert again[1] == pytest.approx(again[0], rel=1e-3)
    assert kept[1] < kept[0] - 0.03


def test_an_epoch_that_is_left_early_leaves_nothing_in_the_next(gpu: vgpu.VirtualGPU) -> None:
    """Persistent workers still hold batches of the epoch before; PyTorch drops them (`_reset`)."""
    loader = DataLoader(_Slow(), batch_size=_BATCH, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert next(iter(loader))[0, 0] == 0
    assert _items(list(loader)) == list(range(_BATCH * _BATCHES))


def test_a_worker_init_function_delays_the_first_batches(gpu: vgpu.VirtualGPU) -> None:
    ((plain,), _) = _epochs(_Slow(), num_workers=2)
    ((slow,), _) = _epochs(_Slow(), num_workers=2, worker_init_fn=lambda _: time.sleep(1))
    assert slow - plain == pytest.approx(1, rel=0.01)


def test_pinning_happens_in_a_thread_and_is_seen_by_the_gpu(gpu: vgpu.VirtualGPU) -> None:
    ((seconds,), batches) = _epochs(_Slow(), num_workers=2, pin_memory=True)
    assert all(batch.is_pinned() for batch in batches)
    ((unpinned,), _) = _epochs(_Slow(), num_workers=2)
    assert unpinned <= seconds < unpinned + 0.01


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_an_iterable_dataset_gives_the_batches_of_its_workers_in_turn(gpu: vgpu.VirtualGPU, workers: int) -> None:
    ((seconds,), batches) = _epochs(_Stream(), num_workers=workers, step_seconds=0)
    assert sorted(_items(batches)) == list(range(22))
    if workers > 1:
        assert _items(batches)[:_BATCH] == [float(workers * index) for index in range(_BATCH)]
    assert seconds == pytest.approx(22 * _ITEM_SECONDS / max(workers, 1), abs=0.02 * workers + 0.05)


def test_an_error_in_a_worker_reaches_the_program_in_time(gpu: vgpu.VirtualGPU) -> None:
    class Broken(_Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 5:
                raise KeyError("index five")
            return super().__getitem__(index)

    begin = time.perf_counter()
    with pytest.raises(KeyError, match="index five"):
        _epochs(Broken(), num_workers=1)
    assert time.perf_counter() - begin == pytest.approx(_BATCH_SECONDS + _ITEM_SECONDS, abs=0.05)


@pytest.mark.night
def test_spawned_workers_have_virtual_time_too(gpu: vgpu.VirtualGPU) -> None:
    ((seconds,), batches) = _epochs(_Slow(), num_workers=1, multiprocessing_context="spawn")
    assert _items(batches) == list(range(_BATCH * _BATCHES))
    assert _BATCHES * _BATCH_SECONDS < seconds < _BATCHES * _BATCH_SECONDS + 4  # with the start of an interpreter


def test_a_worker_that_touches_the_gpu_is_told_what_cuda_says(gpu: vgpu.VirtualGPU) -> None:
    class OnGpu(_Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            return super().__getitem__(index).cuda()

    torch.ones(1, device="cuda")
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        _epochs(OnGpu(), num_workers=1)


def test_workers_raise_the_utilisation_of_a_starved_gpu(shapes: vgpu.VirtualGPU) -> None:
    """The lesson of a data-bound loop: a GPU that waits for batches is idle."""

    def utilisation(workers: int) -> float:
        model = torch.nn.Linear(4096, 4096, device="cuda")
        torch.cuda.synchronize()
        busy, began = shapes.queue.busy_seconds, shapes.now()
        for _ in DataLoader(_Slow(), batch_size=_BATCH, num_workers=workers, persistent_workers=False):
            for _ in range(2):
                model(torch.empty(8192, 4096, device="cuda"))
            torch.cuda.synchronize()
        return (shapes.queue.busy_seconds - busy) / (shapes.now() - began)

    alone, helped = utilisation(0), utilisation(4)
    assert alone < 0.5
    assert helped > 1.5 * alone


def _measured() -> tuple[list[float], list[tuple[float, float]], float]:
    with vgpu.attach("T4") as gpu:
        model = torch.nn.Linear(3, 8).cuda()
        moments = []
        loader = DataLoader(_Slow(), batch_size=_BATCH, num_workers=3, pin_memory=True, prefetch_factor=1)
        for batch in loader:
            model(batch.to("cuda", non_blocking=True)).sum().backward()
            moments.append(time.perf_counter())
        return moments, [(kernel.start, kernel.seconds) for kernel in gpu.timeline], gpu.now()


def test_times_do_not_depend_on_which_worker_was_really_faster() -> None:
    assert _measured() == _measured()
