"""A trainer with hooks, in the manner of Lightning."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from labkit import program
from labkit.device import GPU_24_GB, is_simulated, open_device
from labkit.results import LargeTraining, save_json

from .oom_retry import run_with_oom_retry
from .readings import peak_bytes, reset_peak


class VeryLargeModel(nn.Module):
    def __init__(self, num_layers: int = 48, hidden_size: int = 4096) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(num_layers))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x) if index == 0 else layer(torch.relu(x))
        return x


class Module:
    def __init__(self, network, criterion, rate):
        self.network, self.criterion, self.rate = network, criterion, rate

    def configure_optimizers(self):
        return torch.optim.Adam(self.network.parameters(), lr=self.rate, foreach=False)

    def training_step(self, batch):
        return self.criterion(self.network(batch[0]), batch[1])

    validation_step = training_step


class Trainer:
    def __init__(self, micro_batch, epochs, device):
        self.micro_batch, self.epochs, self.device = micro_batch, epochs, device
        self.losses, self.validation_losses = [], []

    def fit(self, module, train_loader, val_loader):
        optimizer = module.configure_optimizers()
        for _ in range(self.epochs):
            module.network.train()
            for batch in train_loader:
                optimizer.zero_grad()
                self.losses.append(self.accumulate(module, batch))
                optimizer.step()
            self.validate(module, val_loader)
            module.network.train()

    def transfer(self, batch):
        samples = batch[0].size(0)
        for part in zip(*(tensor.split(self.micro_batch) for tensor in batch), strict=True):
            yield part[0].size(0) / samples, [tensor.to(self.device) for tensor in part]

    def accumulate(self, module, batch):
        logged = torch.zeros((), dtype=torch.float64)
        for share, part in self.transfer(batch):
            loss = module.training_step(part) * share
            loss.backward()
            logged += loss.detach().cpu()
        return logged.item()

    @torch.no_grad()
    def validate(self, module, loader):
        module.network.eval()
        weighted, samples = 0.0, 0
        for batch in loader:
            size = batch[0].size(0)
            weighted += size * sum(share * module.validation_step(part).item() for share, part in self.transfer(batch))
            samples += size
        self.validation_losses.append(weighted / samples)


def train_large_model(
    model, train_loader, val_loader, *, epochs=1, micro_batch=8, learning_rate=1e-4, criterion=functional.mse_loss
):
    if micro_batch < 1:
        raise ValueError("micro_batch is at least 1")
    device = next(iter(model.state_dict().values())).device
    reset_peak(str(device))
    trainer = Trainer(micro_batch, epochs, device)
    trainer.fit(Module(model, criterion, learning_rate), train_loader, val_loader)
    return LargeTraining(
        device=device.type,
        micro_batch=micro_batch,
        optimizer_steps=len(trainer.losses),
        losses=tuple(trainer.losses),
        validation_losses=tuple(trainer.validation_losses),
        peak_bytes=peak_bytes(str(device)),
    )


def main(argv=None):
    parser = program.make_parser("oom", results=Path(__file__).parent / "results")
    parser.add_argument("--micro-batch", type=int, default=64)
    options = parser.parse_args(argv)
    with open_device("auto" if is_simulated() else f"vgpu:{GPU_24_GB}", values=False) as device:
        row = torch.zeros(1, 1, 4096).expand(64, 512, 4096)

        def attempt(size):
            with torch.device("cuda"):
                model = VeryLargeModel()
            return train_large_model(model, [(row, row)], [(row, row)], micro_batch=size)

        result, _ = run_with_oom_retry(attempt, options.micro_batch)
        program.print_written(save_json(options.out / "oom.json", [result], device.provenance()))
    return 0


if __name__ == "__main__":
    sys.exit(program.run(main))
