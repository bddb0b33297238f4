"""Two training steps whose next input comes on a copy stream, for pictures of the virtual GPU (`renew.py`)."""

from __future__ import annotations

import torch
from torch import nn

BATCH, WIDTH = 192, 384


class Training:
    """A small model, and batches in pinned memory."""

    def __init__(self) -> None:
        layers = (nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.batches = [torch.randn(BATCH, WIDTH).pin_memory() for _ in range(4)]
        self.labels = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
        self.copies = torch.cuda.Stream()

    def warm_up(self) -> None:
        self.step(self.batches[0].cuda())
        torch.cuda.synchronize()

    def run(self) -> None:
        """Two steps; each copies the next batch meanwhile."""
        inputs = self.batches[1].cuda(non_blocking=True)
        for following in self.batches[2:]:
            with torch.profiler.record_function("step"):
                with torch.cuda.stream(self.copies):
                    prefetched = following.cuda(non_blocking=True)
                self.step(inputs)
                torch.cuda.current_stream().wait_stream(self.copies)
                prefetched.record_stream(torch.cuda.current_stream())
                inputs = prefetched

    def step(self, inputs: torch.Tensor) -> float:
        with torch.profiler.record_function("forward"):
            loss = nn.functional.cross_entropy(self.model(inputs), self.labels)
        with torch.profiler.record_function("backward"):
            loss.backward()
        with torch.profiler.record_function("update"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


if __name__ == "__main__":  # an ordinary program for CUDA: `python -m vgpu record` runs it
    training = Training()
    training.warm_up()
    training.run()
