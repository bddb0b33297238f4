import torch
from torch import nn


def create_model():
    return nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 10))


def profile_training_memory():
    """Profile GPU memory during training"""
    stages = {}
    torch.cuda.reset_peak_memory_stats()
    model = create_model().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    stages["model"] = torch.cuda.memory_allocated()
    x = torch.randn(512, 64, device="cuda")
    y = torch.randint(0, 10, (512,), device="cuda")
    out = model(x)
    stages["forward"] = torch.cuda.memory_allocated()
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    stages["backward"] = torch.cuda.memory_allocated()
    optimizer.step()
    stages["step"] = torch.cuda.memory_allocated()
    return stages
