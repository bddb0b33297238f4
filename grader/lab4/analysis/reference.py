"""What a training step keeps by the rules of Task 4.5, right or with a mistake, so that a mistake is recognised.

The checks compare predictions with what a step of the course's own models was seen to hold, and not with this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.lab4.analysis.cases import Setup

NEAR = 0.01
"""Relative distance of a prediction from one with a mistake. Tensors of a head's or a row's statistics are less."""


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a prediction of activations, and of which models."""

    name: str
    text: str
    models: Sequence[str] = ("mlp", "transformer")
    low: float = 0.0
    """Numbers per token and layer, times the width, that are counted too much; in the type of the products."""
    wide: float = 0.0
    """The same in float32."""
    weight_copies: bool = True
    halves: bool = False
    """Whether a mistake in the type makes all of it 2 bytes wide."""
    float16_only: bool = False
    """Whether bfloat16 is taken for float32."""
    segments: str = "rounded up"


_FEED_FORWARD = "of the two inner tensors of the feed-forward layer (4 x width: GELU's input, and what follows it)"
_ONE = "tensor of width numbers per token (the output of a norm or of attention)"
_TRANSFORMER, _MLP = ("transformer",), ("mlp",)
PLAIN = (
    Mistake("feed_forward_once", f"only one {_FEED_FORWARD} is counted", _TRANSFORMER, low=-4),
    Mistake("feed_forward_not", f"none {_FEED_FORWARD} is counted", _TRANSFORMER, low=-8),
    Mistake("feed_forward_twice", f"one {_FEED_FORWARD} is counted twice", _TRANSFORMER, low=4),
    Mistake("queries_keys_values_not", "queries, keys and values are not counted", _TRANSFORMER, low=-3),
    Mistake("queries_keys_values_twice", "queries, keys and values are counted twice", _TRANSFORMER, low=3),
    Mistake("one_not", f"one {_ONE} is not counted", _TRANSFORMER, low=-1),
    Mistake("two_not", f"two tensors are not counted: each a {_ONE}", _TRANSFORMER, low=-2),
    Mistake("one_twice", f"one {_ONE} is counted twice", _TRANSFORMER, low=1),
    Mistake("two_twice", f"two tensors are counted twice: each a {_ONE}", _TRANSFORMER, low=2),
    Mistake("sum_not", "of a block's two sums (the inputs of norms), one is not counted", _TRANSFORMER, wide=-1),
    Mistake("sums_not", "a block's two sums (the inputs of norms) are not counted", _TRANSFORMER, wide=-2),
    Mistake("sum_twice", "of a block's two sums (the inputs of norms), one is counted twice", _TRANSFORMER, wide=1),
    Mistake("sums_twice", "a block's two sums (the inputs of norms) are counted twice", _TRANSFORMER, wide=2),
    Mistake("relu_and_linear", "ReLU's output and the next layer's input, one tensor, are counted twice", _MLP, low=1),
    Mistake("all_in_16_bits", "autocast is taken to halve every activation", halves=True),
    Mistake("float16_only", "bfloat16 is taken for float32, and only float16 for a 16-bit type", float16_only=True),
    Mistake("weight_copies_not", "the 16-bit copies of the weights are left out", weight_copies=False),
)
CHECKPOINTED = (
    Mistake("segments_rounded_down", "the short last segment is not counted", segments="rounded down"),
    Mistake("segments_as_interval", "checkpoint_every is taken for the number of segments", segments="interval"),
    Mistake("segments_and_input", "the model's own input is counted as well", segments="one more"),
    Mistake("segments_in_16_bits", "the tensors between the blocks are taken to have 2 bytes", halves=True),
)


def activation_bytes(setup: Setup, mistake: Mistake | None = None) -> float:
    """What a step keeps for backward, right or with a mistake."""
    wrong = mistake or Mistake("", "")
    width, layers = setup["width"], setup["layers"]
    numbers = float(width * setup["tokens"])
    low = setup["dtype"] == "float16" or (setup["dtype"] == "bfloat16" and not wrong.float16_only)
    narrow, wide = 2 if low else 4, 2 if low and wrong.halves else 4
    if (every := setup["checkpoint_every"]) is not None:
        segments = {
            "rounded up": -(-layers // every),
            "rounded down": layers // every,
            "interval": every,
            "one more": -(-layers // every) + 1,
        }[wrong.segments]
        return segments * wide * numbers
    mlp = setup["model"] == "mlp"
    copies = 2 * (width**2 * (layers - 1) if mlp else 12 * width**2 * layers) if low and wrong.weight_copies else 0
    if mlp:
        return narrow * (layers * (1 + wrong.low) + low) * numbers + copies
    kept = wide * (2 + wrong.wide) + narrow * (14 + wrong.low)
    statistics = (4 * setup["heads"] + 16) * setup["tokens"]
    return layers * (kept * numbers + statistics) + copies


def mistake_in(mistakes: Sequence[Mistake], predictions: Sequence[tuple[Setup, object]], model: str) -> Mistake | None:
    """The only mistake that explains the predictions of all setups of a model; None if they need none."""
    own = [(setup, predicted) for setup, predicted in predictions if setup["model"] == model]
    possible = [None, *(mistake for mistake in mistakes if model in mistake.models)]
    found = [mistake for mistake in possible if all(_is(setup, predicted, mistake) for setup, predicted in own)]
    return found[0] if len(found) == 1 else None


def _is(setup: Setup, predicted: object, mistake: Mistake | None) -> bool:
    expected = activation_bytes(setup, mistake)
    return isinstance(predicted, (int, float)) and abs(predicted - expected) <= NEAR * expected


def numbers_per_parameter(predictions: Sequence[tuple[Setup, Mapping[str, object]]], optimizer: str) -> int | None:
    """How many numbers an optimizer is predicted to keep for each parameter that is predicted, if that is a number."""
    ratios = set()
    for setup, prediction in predictions:
        state, parameters = prediction["optimizer_state_bytes"], prediction["parameter_bytes"]
        if setup["optimizer"] == optimizer:
            if not isinstance(state, (int, float)) or not isinstance(parameters, (int, float)) or parameters <= 0:
                return None
            ratios.add(round(state / parameters, 3))
    (ratio,) = ratios if len(ratios) == 1 else (0.5,)
    return int(ratio) if ratio == int(ratio) else None
