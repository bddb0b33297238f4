"""Train an image classifier: handwritten digits of scikit-learn (no download), a small CNN, accuracy per class.

After PyTorch's tutorial "Training a Classifier", with the loader settings of its performance tuning guide.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


class Net(nn.Module):
    """Two convolutions with batch norm, a pooling layer and two linear layers, for 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(2, 2)
        self.dropout = nn.Dropout(0.2)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.pool(F.relu(self.norm2(self.conv2(x))))
        x = self.dropout(torch.flatten(x, 1))
        result: Tensor = self.fc2(F.relu(self.fc1(x)))
        return result


def make_loaders(
    batch_size: int, workers: int
) -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    dataset = TensorDataset((images - 0.3) / 0.38, torch.as_tensor(digits.target))
    train, test = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(
        train, batch_size, shuffle=True, num_workers=workers, pin_memory=True, persistent_workers=workers > 0
    )
    return train_loader, DataLoader(test, 4 * batch_size, num_workers=workers, pin_memory=True)


@torch.no_grad()
def evaluate(net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], device: torch.device) -> Tensor:
    """Accuracy of each class."""
    net.eval()
    right, seen = torch.zeros(10, device=device), torch.zeros(10, device=device)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        _, predicted = torch.max(net(images), 1)
        seen += torch.bincount(labels, minlength=10)
        right += torch.bincount(labels[predicted == labels], minlength=10)
    return right / seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", type=Path, default=Path("digits_net.pth"))
    options = parser.parse_args()

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    print(device)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    net = Net().to(device)
    train_loader, test_loader = make_loaders(options.batch_size, options.workers)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, options.lr, options.epochs * len(train_loader))

    for epoch in range(options.epochs):
        net.train()
        running_loss, started = 0.0, time.time()
        for inputs, labels in train_loader:
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(net(inputs), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            running_loss += loss.item()
        seconds = time.time() - started
        print(f"epoch {epoch + 1}: loss {running_loss / len(train_loader):.3f}, {seconds:.2f} s")
    print("finished training")

    torch.save(net.state_dict(), options.save)
    again = Net()
    again.load_state_dict(torch.load(options.save, map_location=device, weights_only=True))
    per_class = evaluate(again.to(device), test_loader, device)
    print("per class: " + " ".join(f"{share:.0%}" for share in per_class.tolist()))
    print(f"test accuracy: {100 * per_class.mean().item():.1f} %")


if __name__ == "__main__":
    main()
