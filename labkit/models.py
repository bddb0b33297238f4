"""Small models that train in seconds on a CPU, with their shapes and parameter counts.

Not a model zoo, and not where a lab's own subject is solved: no autocast, no checkpointing, no distribution.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(in_features: int = 64, hidden: tuple[int, ...] = (256,), classes: int = 10) -> nn.Sequential:
    """A classifier of flattened inputs: linear layers with ReLU between them.

    Args:
        in_features: numbers per sample, for example 1 * 8 * 8 for digits, 1 * 28 * 28 for Fashion-MNIST.
        hidden: width of each hidden layer.
        classes: width of the output.

    Returns:
        A module that maps [N, ...] with `in_features` numbers per sample to logits [N, classes]. Each layer from a to
        b numbers has a b + b parameters: 19 210 for the defaults.
    """
    widths = (in_features, *hidden, classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn(channels: int = 1, size: int = 28, classes: int = 10, width: int = 16) -> nn.Sequential:
    """A classifier of square images: two 3 x 3 convolutions, each halving the picture, then one linear layer.

    Args:
        channels: of the input image.
        size: its height and width; a multiple of 4.
        classes: width of the output.
        width: channels after the first convolution; the second has twice as many.

    Returns:
        A module that maps [N, channels, size, size] to logits [N, classes]. With w = width it has (9 channels + 1) w +
        (18 w^2 + 2 w) parameters in the convolutions, 6 w in the batch norms and 2 w (size / 4)^2 classes + classes in
        the linear layer: 20 586 for the defaults.

    Raises:
        ValueError: `size` is not a multiple of 4.
    """
    if size < 4 or size % 4:
        raise ValueError(f"size must be a multiple of 4, not {size}: the picture is halved twice")
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (size // 4) ** 2, classes),
    )


class TransformerBlock(nn.Module):
    """One pre-norm transformer block: x + attention(norm(x)), then x + feed-forward(norm(x)).

    Pre-norm as in Xiong et al. 2020 (arXiv:2002.04745), which trains without a warm-up of the learning rate; attention
    by `torch.nn.functional.scaled_dot_product_attention`. Maps [N, length, width] to the same shape. With w = width and
    a feed-forward layer of 4 w it has 12 w^2 + 13 w parameters.

    Args:
        width: numbers per token.
        heads: attention heads; must divide `width`.
        dropout: probability in attention weights and after both branches; active in training only.
        causal: whether a token sees only itself and earlier tokens.

    Raises:
        ValueError: `heads` does not divide `width`.
    """

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide a width of {width}")
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attend(self.attention_norm(x)), self.dropout, self.training)
        return x + functional.dropout(self.feed_forward(x), self.dropout, self.training)

    def attend(self, x: Tensor) -> Tensor:
        """Attention of normalised tokens [N, length, width] to each other; the same shape."""
        samples, length, width = x.shape
        # [N, length, 3 width] -> three tensors [N, heads, length, width / heads]
        split = self.query_key_value(x).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=self.causal
        )
        projected: Tensor = self.projection(attended.transpose(1, 2).reshape(samples, length, width))
        return projected


class TinyTransformer(nn.Module):
    """A causal language model: token and position embeddings, `layers` blocks, a norm and a linear head.

    Maps integer tokens [N, length] to logits [N, length, vocabulary]. With w = width it has
    (vocabulary + longest) w + layers (12 w^2 + 13 w) + 2 w + (w + 1) vocabulary parameters: 112 448 for the defaults.

    Args:
        vocabulary: number of different tokens.
        width: numbers per token.
        heads: attention heads per block.
        layers: number of blocks.
        longest: longest sequence it can read.
        dropout: as in `TransformerBlock`.
    """

    def __init__(
        self,
        vocabulary: int = 64,
        *,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        longest: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, dropout=dropout, causal=True) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
