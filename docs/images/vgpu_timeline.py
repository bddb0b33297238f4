"""Makes `vgpu-timeline.png`: two training steps, whose next input comes on a copy stream.

.venv/bin/python docs/images/vgpu_timeline.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import vgpu

BATCH, WIDTH = 192, 384


def main() -> None:
    """Warm up, note the time, run, draw."""
    with vgpu.attach("T4", values=False) as gpu:
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        )
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batches = [torch.randn(BATCH, WIDTH).pin_memory() for _ in range(4)]
        labels = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
        copies = torch.cuda.Stream()

        def step(inputs: torch.Tensor) -> float:
            with torch.profiler.record_function("forward"):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            with torch.profiler.record_function("backward"):
                loss.backward()
            with torch.profiler.record_function("update"):
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        step(batches[0].cuda())
        torch.cuda.synchronize()
        start = gpu.now()
        inputs = batches[1].cuda(non_blocking=True)
        for following in batches[2:]:
            with torch.profiler.record_function("step"):
                with torch.cuda.stream(copies):
                    prefetched = following.cuda(non_blocking=True)
                step(inputs)
                torch.cuda.current_stream().wait_stream(copies)
                inputs = prefetched
        gpu.save_picture(Path(__file__).with_name("vgpu-timeline.png"), start=start)


if __name__ == "__main__":
    main()
