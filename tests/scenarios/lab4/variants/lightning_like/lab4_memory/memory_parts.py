"""A class per kind of layer that adds up what it holds."""


class Linear:
    def __init__(self, inputs, outputs):
        self.weight, self.bias = inputs * outputs, outputs

    @property
    def numbers(self):
        return self.weight + self.bias


class Norm:
    def __init__(self, width):
        self.numbers = 2 * width


class Block:
    def __init__(self, width, heads):
        self.width, self.heads = width, heads
        self.linear = [
            Linear(width, 3 * width),
            Linear(width, width),
            Linear(width, 4 * width),
            Linear(4 * width, width),
        ]
        self.norms = [Norm(width), Norm(width)]

    def numbers(self):
        return sum(part.numbers for part in self.linear + self.norms)

    def kept(self, tokens, low):
        small = 2 if low else 4
        wide = 2 * self.width * 4 + 4 * 4
        narrow = sum((1, 3, 1, 1, 4, 4)) * self.width * small + 4 * self.heads
        copies = sum(part.weight for part in self.linear) * 2 if low else 0
        return tokens * (wide + narrow) + copies


def predict(setup):
    low = setup.dtype != "float32"
    n, w, t = setup.layers, setup.width, setup.tokens
    if setup.model == "mlp":
        layer = Linear(w, w)
        numbers = n * layer.numbers
        kept = n * w * t * (2 if low else 4) + (2 * w * t + 2 * (n - 1) * layer.weight if low else 0)
    else:
        block = Block(w, setup.heads)
        numbers, kept = n * block.numbers(), n * block.kept(t, low)
    if setup.checkpoint_every is not None:
        kept = 4 * w * t * len(range(0, n, setup.checkpoint_every))
    slots = ("sgd", "momentum", "adam").index(setup.optimizer)
    return 4 * numbers, 4 * numbers, 4 * numbers * slots, kept
