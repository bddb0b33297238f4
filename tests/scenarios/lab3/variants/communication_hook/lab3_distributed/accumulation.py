"""A communication hook that exchanges nothing until the last batch of a window, and then sums instead of averaging."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from labkit.results import AccumulationResult


class Exchange:
    on = True


def hook(state, bucket):
    buffer = bucket.buffer()
    if not state.on:
        done = torch.futures.Future()
        done.set_result(buffer)
        return done
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])


def number_of(targets):
    return targets.shape[0] if targets.dtype.is_floating_point else (targets != -100).sum().item()


def train_with_accumulation(model, train_loader, accumulation_steps=4, *, optimizer=None, criterion=None, device=None):
    if not accumulation_steps >= 1:
        raise ValueError(accumulation_steps)
    optimizer = optimizer if optimizer is not None else torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = criterion if criterion is not None else F.cross_entropy
    device = torch.device(device) if device else next(model.parameters()).device
    model.train()
    state = None
    if dist.is_initialized():
        state = Exchange()
        model.register_comm_hook(state, hook)
    batches = list(train_loader)
    windows = [batches[i : i + accumulation_steps] for i in range(0, len(batches), accumulation_steps)]
    counts = torch.tensor(
        [[number_of(y) for _, y in window] + [0] * (accumulation_steps - len(window)) for window in windows]
    )
    everywhere = counts.sum(dim=1).to(device)
    if state:
        dist.all_reduce(everywhere)
    losses = torch.zeros(len(windows), dtype=torch.float64, device=device)
    for w, window in enumerate(windows):
        optimizer.zero_grad(set_to_none=False)
        for b, (x, y) in enumerate(window):
            if state:
                state.on = b + 1 == len(window)
            loss = criterion(model(x.to(device)), y.to(device)) * counts[w, b] / everywhere[w]
            loss.backward()
            losses[w] += loss.detach()
        optimizer.step()
    if state:
        dist.all_reduce(losses)
    return AccumulationResult(
        optimizer_steps=len(windows),
        micro_batches=len(batches),
        effective_batch_sizes=tuple(everywhere.tolist()),
        losses=tuple(losses.tolist()),
    )
