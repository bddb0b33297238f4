import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class TransformerLayer(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(256, 8, batch_first=True)


class CheckpointedTransformer(nn.Module):
    def __init__(self, num_layers=12):
        super().__init__()
        self.layers = nn.ModuleList([TransformerLayer() for _ in range(num_layers)])

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x
