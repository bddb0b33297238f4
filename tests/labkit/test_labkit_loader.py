"""The loader that knows where it is: same order again, shares of ranks, positions in the middle of an epoch."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch.utils.data import TensorDataset

from labkit.loader import ResumableLoader

SAMPLES = 23


def loader(**changes: object) -> ResumableLoader:
    return ResumableLoader(TensorDataset(torch.arange(SAMPLES)), **{"batch_size": 4, "seed": 7, **changes})  # type: ignore[arg-type]


def numbers(loader: ResumableLoader) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


def test_an_epoch_has_every_sample_once_and_the_next_has_another_order() -> None:
    resumable = loader()
    epochs = [numbers(resumable), numbers(resumable)]
    assert [sorted(chain(*epoch)) for epoch in epochs] == [list(range(SAMPLES))] * 2
    assert epochs[0] != epochs[1]
    assert len(resumable) == len(epochs[0]) == 6
    again = loader()
    again.set_epoch(1)
    assert numbers(again) == epochs[1]


def test_the_order_depends_on_the_seed_and_on_no_global_random_number() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = numbers(loader())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert numbers(loader()) == first
    assert numbers(loader(seed=8)) != first
    assert numbers(loader(shuffle=False)) == [
        list(range(start, min(start + 4, SAMPLES))) for start in range(0, SAMPLES, 4)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_in_the_middle_of_an_epoch_where_it_stopped(workers: int) -> None:
    whole = numbers(loader())
    stopped = loader(num_workers=workers)
    handed_out = []
    for (batch,) in stopped:
        handed_out.append(batch.tolist())
        if len(handed_out) == 2:
            break
    other = loader()
    other.load_state_dict(stopped.state_dict())
    assert handed_out + numbers(other) == whole
    assert other.position == len(other)


def test_the_ranks_share_the_samples_and_have_as_many_batches() -> None:
    ranks = [loader(rank=rank, world_size=4) for rank in range(4)]
    assert {len(rank) for rank in ranks} == {2}
    samples = sorted(chain(*(batch for rank in ranks for batch in numbers(rank))))
    assert len(samples) == SAMPLES + 1
    assert set(samples) == set(range(SAMPLES))


def test_a_validation_of_several_ranks_counts_no_sample_twice() -> None:
    ranks = [loader(rank=rank, world_size=4, padded=False) for rank in range(4)]
    assert sorted(chain(*(batch for rank in ranks for batch in numbers(rank)))) == list(range(SAMPLES))
    assert all(len(rank) == len(numbers(rank)) for rank in ranks)


@pytest.mark.parametrize("changes", [{"seed": 8}, {"batch_size": 5}, {"world_size": 2, "rank": 0}, {"shuffle": False}])
def test_a_position_in_another_order_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        loader(**changes).load_state_dict(loader().state_dict())


def test_going_elsewhere_while_batches_are_handed_out_is_an_error() -> None:
    resumable = loader()
    batches = iter(resumable)
    next(batches)
    resumable.set_epoch(3)
    with pytest.raises(RuntimeError, match="elsewhere"):
        next(batches)


def test_ranks_and_batches_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 of 2"):
        loader(rank=2, world_size=2)
    with pytest.raises(ValueError, match="batches of 0"):
        loader(batch_size=0)
