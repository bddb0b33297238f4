import torch
from torch.cuda.amp import autocast, GradScaler


def train_with_amp(model, train_loader, epochs=10):
    """Implement AMP training"""
    scaler = GradScaler()
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    losses = []
    for epoch in range(epochs):
        total, n = 0.0, 0
        for data, target in train_loader:
            data, target = data.cuda(), target.cuda()
            optimizer.zero_grad()
            with autocast():
                loss = torch.nn.functional.cross_entropy(model(data), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.item() * len(data)
            n += len(data)
        losses.append(total / n)
    return losses
