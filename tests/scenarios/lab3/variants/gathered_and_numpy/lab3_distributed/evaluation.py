"""Evaluation by gathered answers: shares are filled up to equal length, and what was filled up is cut off again."""

import torch
import torch.distributed as dist


def evaluate(model, dataset, *, device=None, batch_size=64):
    count = len(dataset)
    if not count:
        raise ValueError("no samples")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = device or next(model.parameters()).device
    modes = {part: part.training for part in model.modules()}
    model.eval()
    length = -(-count // world)
    numbers = [(rank + world * i) % count for i in range(length)]
    answers = []
    with torch.no_grad():
        for begin in range(0, length, batch_size):
            pairs = [dataset[i] for i in numbers[begin : begin + batch_size]]
            inputs = torch.stack([x for x, _ in pairs]).to(device)
            labels = torch.stack([y for _, y in pairs]).to(device)
            answers.append(model(inputs).argmax(-1).eq(labels).to(torch.int32))
    mine = torch.cat(answers)
    for part, mode in modes.items():
        part.training = mode
    everybody = [torch.empty_like(mine) for _ in range(world)]
    if world > 1:
        dist.all_gather(everybody, mine)
    else:
        everybody = [mine]
    in_order = torch.stack(everybody, dim=1).flatten()[:count]
    return in_order.float().mean().item()
