"""Peak memory of two training steps counted by hand, layer by layer, from what CUDA's kernels save.

What is saved stands in tools/autograd/derivatives.yaml; sizes are in bytes. This knows nothing of `vgpu`, and leaves
out what the tests name: the slack of blocks that are larger than what was asked for, and what cuBLAS keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Bytes:
    """A running count and its largest value."""

    held: int = 0
    peak: int = 0

    def take(self, size: int) -> int:
        self.held += size
        self.peak = max(self.peak, self.held)
        return size

    def give(self, size: int) -> None:
        self.held -= size


# ---- a GPT-2-sized transformer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transformer:
    layers: int = 12
    width: int = 768
    heads: int = 12
    length: int = 1024
    vocabulary: int = 50257
    batch: int = 4

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def linear_parameters(self) -> int:
        """Weights of the layers' four products; the vocabulary's product shares the embedding's weight."""
        d = self.width
        return self.layers * (3 * d * d + d * d + 4 * d * d + 4 * d * d)

    @property
    def parameters(self) -> int:
        d = self.width
        biases = self.layers * (3 * d + d + 4 * d + d)
        norms = (2 * self.layers + 1) * 2 * d
        return self.linear_parameters + biases + norms + (self.vocabulary + self.length) * d


def layer_activations(model: Transformer, *, amp: bool) -> int:
    """What one layer keeps for backward, in bytes. `low` is the size of an element that a product reads or writes."""
    d, tokens, low = model.width, model.tokens, 2 if amp else 4
    norm = 4 * d + 4 + 4  # its input, FP32 under autocast too; mean and 1 / deviation
    per_token = (
        norm
        + low * d  # the normed input, which the product to q, k, v reads
        + low * 3 * d  # q, k and v
        + low * d  # attention's result
        + 4 * model.heads  # log-sum-exp of the scores
        + norm
        + low * d  # the normed input, which the product to 4 d reads
        + low * 4 * d  # the input of GELU
        + low * 4 * d  # its result, which the product back to d reads
    )
    return tokens * per_token


def transformer_peak(model: Transformer, *, amp: bool, checkpointed: bool, states: int) -> int:
    """Peak of a training step, gradients set to None before it, with `states` FP32 values per parameter.

    It comes in backward, at the gradient of log-softmax: the log-probabilities, their gradient and the gradient of the
    logits exist at once, in FP32 also under autocast, while nearly every activation is still there.
    """
    d, tokens = model.width, model.tokens
    total = Bytes()
    total.take(4 * model.parameters * (1 + states))
    total.take(2 * 8 * tokens)  # tokens and targets
    total.take(8 * model.length)  # positions
    if checkpointed:
        total.take(model.layers * 4 * d * tokens)  # the input of each layer
    else:
        total.take(model.layers * layer_activations(model, amp=amp))
    total.take(tokens * (4 * d + 4 + 4))  # the last norm: input, mean, deviation
    total.take(tokens * (2 if amp else 4) * d)  # its result, which the product to the vocabulary reads
    if amp:
        # Casts of weights that autograd keeps: of the embedding, and of the layers unless they are recomputed.
        total.take(2 * model.vocabulary * d)
        if not checkpointed:
            total.take(2 * model.linear_parameters)
    total.take(3 * 4 * tokens * model.vocabulary)
    return total.peak


# ---- ResNet-18 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conv:
    """A convolution with its batch norm; `edge` is that of the output's square."""

    inputs: int
    outputs: int
    kernel: int
    edge: int
    input_edge: int

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.kernel**2


@dataclass(frozen=True)
class Block:
    first: Conv
    second: Conv
    shortcut: Conv | None = None

    @property
    def convolutions(self) -> list[Conv]:
        return [self.first, self.second, *([self.shortcut] if self.shortcut else [])]


@dataclass(frozen=True)
class ResNet18:
    batch: int = 32
    classes: int = 1000
    stem: Conv = Conv(3, 64, 7, 112, 224)
    blocks: tuple[Block, ...] = field(default_factory=lambda: tuple(_blocks()))

    @property
    def parameters(self) -> int:
        convolutions = [self.stem, *[conv for block in self.blocks for conv in block.convolutions]]
        norms = sum(2 * conv.outputs for conv in convolutions)
        return sum(conv.weights for conv in convolutions) + norms + 512 * self.classes + self.classes

    @property
    def buffers(self) -> int:
        """Running means and variances, in bytes, and the counts of batches."""
        convolutions = [self.stem, *[conv for block in self.blocks for conv in block.convolutions]]
        return sum(2 * 4 * conv.outputs + 512 for conv in convolutions)


def _blocks() -> list[Block]:
    blocks = []
    before, edge = 64, 56
    for outputs in (64, 128, 256, 512):
        after = edge if outputs == 64 else edge // 2
        shortcut = Conv(before, outputs, 1, after, edge) if outputs != before else None
        blocks.append(Block(Conv(before, outputs, 3, after, edge), Conv(outputs, outputs, 3, after, after), shortcut))
        blocks.append(Block(Conv(outputs, outputs, 3, after, after), Conv(outputs, outputs, 3, after, after)))
        before, edge = outputs, after
    return blocks


class _Step:
    """Walks forward and back through the network; `element` is the size of an activation's element.

    In half precision cuDNN's tensor-core kernels copy what they read and write to NHWC in a workspace, and sum the
    gradient of a weight in FP32 there (modelled; `workspaces=False` leaves it out). In FP32 a T4 needs next to nothing.
    """

    def __init__(self, net: ResNet18, *, amp: bool, checkpointed: bool, states: int, workspaces: bool) -> None:
        self.net, self.amp, self.checkpointed = net, amp, checkpointed
        self.has_workspaces = workspaces and amp
        self.element = 2 if amp else 4
        self.bytes = Bytes()
        self.bytes.take(4 * net.parameters * (1 + states) + net.buffers)
        self.bytes.take(4 * net.batch * 3 * 224 * 224 + 8 * net.batch)  # images and labels

    def map(self, channels: int, edge: int) -> int:
        return self.element * self.net.batch * channels * edge * edge

    def out(self, conv: Conv) -> int:
        return self.map(conv.outputs, conv.edge)

    def cast(self, conv: Conv) -> int:
        return 2 * conv.weights if self.amp else 0

    def workspace(self, conv: Conv, sums: int = 0) -> None:
        """Copies of a convolution's input, weight and result, for as long as it runs."""
        if self.has_workspaces:
            copies = self.map(conv.inputs, conv.input_edge) + self.element * conv.weights + self.out(conv)
            self.bytes.give(self.bytes.take(copies + sums))

    def forward(self, conv: Conv) -> None:
        """Convolution and batch norm: both results exist; the norm saves the first, and two numbers per channel."""
        self.bytes.take(self.cast(conv))  # the weight in half precision, which autograd keeps
        self.bytes.take(self.out(conv))
        self.workspace(conv)
        self.bytes.take(self.out(conv) + 2 * 4 * conv.outputs)

    def backward(self, conv: Conv, *, to_input: bool = True) -> None:
        """Batch norm, then convolution: the gradient of the norm's result is held before, that of the input after."""
        self.bytes.take(self.out(conv) + 2 * 4 * conv.outputs)  # gradient of the convolution's result; of the norm
        self.bytes.give(self.out(conv))  # gradient of the norm's result
        self.bytes.give(self.out(conv) + 2 * 4 * conv.outputs)  # what the norm had saved
        if to_input:
            self.bytes.take(self.map(conv.inputs, conv.input_edge))
        self.bytes.take(self.element * conv.weights)
        self.workspace(conv, 4 * conv.weights)
        if self.amp:  # the weight's gradient goes back to FP32
            self.bytes.give(self.out(conv))
            self.bytes.give(self.cast(conv))
            self.bytes.take(4 * conv.weights)
            self.bytes.give(2 * conv.weights)
        else:
            self.bytes.give(self.out(conv))

    def block_forward(self, block: Block) -> None:
        """ReLU works in place on a norm's result, and so does the sum on the second norm's."""
        self.forward(block.first)
        self.forward(block.second)
        if block.shortcut:
            self.forward(block.shortcut)
            self.bytes.give(self.out(block.shortcut))  # added to the second norm's result, and gone

    def block_backward(self, block: Block) -> None:
        """On entry the gradient of the block's result is held, on exit that of its input."""
        out = self.out(block.second)
        self.bytes.take(out)  # gradient of the sum, which goes both ways
        self.bytes.give(out)
        self.bytes.give(out)  # the block's result, which ReLU had saved
        if block.shortcut:
            # The shortcut's norm and convolution come first: they were the last in forward.
            self.bytes.take(out)  # the main path keeps the sum's gradient
            self.backward(block.shortcut)
        else:
            self.bytes.take(out)
        self.backward(block.second)
        inner = self.out(block.first)
        self.bytes.take(inner)  # gradient of ReLU's input
        self.bytes.give(inner)
        self.bytes.give(inner)  # ReLU's result
        self.backward(block.first)
        self.bytes.give(self.map(block.first.inputs, block.first.input_edge))  # the two gradients are added in place

    def run(self) -> int:
        stem, pool = self.net.stem, self.map(64, 56)
        indices = 8 * self.net.batch * 64 * 56 * 56
        if self.amp:
            self.bytes.take(2 * self.net.batch * 3 * 224 * 224)  # the images in half precision
        self.forward(stem)
        self.bytes.take(pool + indices)
        for block in self.net.blocks:
            before = self.bytes.held
            self.block_forward(block)
            if self.checkpointed:
                # Only the block's result stays.
                self.bytes.give(self.bytes.held - before - self.out(block.second))
        features = self.element * self.net.batch * 512
        logits = self.net.batch * self.net.classes
        self.bytes.take(features + (2 * 512 * self.net.classes + self.element * logits if self.amp else 4 * logits))
        self.bytes.take(4 * logits)  # log-probabilities
        self.bytes.take(4 * logits)  # their gradient
        self.bytes.take(4 * logits)  # the logits' gradient
        self.bytes.give(2 * 4 * logits)
        self.bytes.take(4 * (512 * self.net.classes + self.net.classes))  # the last layer's gradients
        self.bytes.give(4 * logits)
        self.bytes.take(self.map(512, 7))  # gradient of the last block's result
        for block in reversed(self.net.blocks):
            if self.checkpointed:
                # The block's result of forward was freed by then; it is recomputed with everything in it.
                self.bytes.give(self.out(block.second))
                self.block_forward(block)
            self.block_backward(block)
        self.bytes.take(self.out(stem))  # gradient of the pool's input
        self.bytes.give(pool + indices + pool)
        self.bytes.take(self.out(stem))  # gradient of ReLU's input
        self.bytes.give(2 * self.out(stem))
        self.backward(stem, to_input=False)
        return self.bytes.peak


def resnet_peak(net: ResNet18, *, amp: bool, checkpointed: bool, states: int, workspaces: bool = True) -> int:
    """Peak of a training step of torchvision's ResNet-18, gradients set to None before it."""
    return _Step(net, amp=amp, checkpointed=checkpointed, states=states, workspaces=workspaces).run()
