"""What a forward pass keeps and backward computes again, by interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradebox.run.assertions import Cause, mebibytes, require
from grader.lab4.checkpointing.cases.types import KeptBytes
from grader.lab4.checkpointing.checks.trained import Trained
from grader.lab4.checkpointing.mistakes import NO_GRADIENT
from grader.lab4.checkpointing.reference import KEPT_MISTAKES, KeptMistake, kept_bytes, kept_with

SOME_AGAIN = 0.6
"""Of the products of what is computed again: PyTorch stops before the last one of a segment, a third of a block's."""
_LEFT = 0.5
"""Of what a plain chain leaves: measured 0.05 at most in a small model."""
_KEPT_HINT = "Checkpoint every segment as one: it keeps its input, and nothing from inside it."
_KEPT: Mapping[KeptMistake, str] = {
    "nothing_checkpointed": "Nothing is checkpointed: a forward pass keeps every activation",
    "only_with_input_gradient": "Blocks are checkpointed only if the input requires a gradient",
    "interval_ignored": "The interval is ignored: every block is a segment of its own",
    "interval_taken_for_segments": "checkpoint_every is taken for the number of segments; it is their length in blocks",
    "one_block_per_interval": "Only one block per interval is checkpointed, and the others keep their activations",
    "only_the_first_segment": "Only the first segment is checkpointed",
}


def kept_mistake(layers: int, kept: Sequence[tuple[int, bool, KeptBytes]], unit: float, plain: float) -> Cause | None:
    """The mistake that explains what is held with every interval."""
    graphs = [
        abs(run.held_bytes - (kept_bytes(layers, interval, unit, plain).every_segment if needed else unit))
        < (1.3 if needed else 0.5) * unit
        for interval, needed, run in kept
    ]
    if all(graphs) and not all(needed for _, needed, _ in kept):
        return NO_GRADIENT  # without a graph the output alone is left

    def explains(mistake: KeptMistake) -> bool:
        return all(
            abs(run.held_bytes - expected) <= 1.3 * unit + 0.03 * expected
            for interval, needed, run in kept
            for expected in [kept_with(mistake, layers, interval, unit, plain, input_gradient=needed)]
        )

    mistake = next((mistake for mistake in KEPT_MISTAKES if explains(mistake)), None)
    return None if mistake is None else Cause(f"kept bytes: {mistake}", _KEPT_HINT, mistake=_KEPT[mistake])


def require_kept(layers: int, interval: int, input_gradient: bool, run: KeptBytes, unit: float, plain: float) -> None:
    """Fail unless a forward pass keeps the inputs of segments alone; without checkpointing it keeps `plain` bytes."""
    # One tensor per segment and the output, the model's own input aside. Room for a copy of that input. Or the last
    # segment kept as a whole. Bugs measured: first segment only, 10 times as much; interval ignored, 3 times; none, 20.
    expected = kept_bytes(layers, interval, unit, plain)
    fits = any(
        abs(run.held_bytes - held) <= 1.3 * unit + 0.03 * (held - expected.every_segment)
        for held in (expected.every_segment, expected.all_but_last)
    )
    require(
        fits,
        f"a forward pass with checkpoint_every={interval} and an input that requires {'a' if input_gradient else 'no'} "
        f"gradient leaves {mebibytes(run.held_bytes)}, without checkpointing {mebibytes(plain)}; expected about "
        f"{mebibytes(expected.every_segment)}: {expected.segments} tensors of {unit:,.0f} bytes",
        _KEPT_HINT,
    )
    require(
        run.saved_bytes <= expected.all_but_last + 2.3 * unit,
        f"with checkpoint_every={interval} {mebibytes(run.saved_bytes)} were saved for backward, expected at most "
        f"{mebibytes(expected.all_but_last)}",
        _KEPT_HINT,
    )


def require_computed_again(layers: int, interval: int, run: KeptBytes, plain: KeptBytes, unit: float) -> None:
    """Fail unless backward computes what was not kept, and nothing was sent to the host instead."""
    again = plain.forward_flops * kept_bytes(layers, interval, unit, 0.0).computed_again
    least = 0.99 * plain.backward_flops + SOME_AGAIN * again
    require(
        run.backward_flops >= least,
        f"backward with checkpoint_every={interval} computes products of {run.backward_flops:.4g} FLOPs, without "
        f"checkpointing {plain.backward_flops:.4g}; expected {least:.4g} at least",
        "Keep the input of each segment alone, and compute the segment again in backward.",
    )
    require(
        run.copied_bytes is None or run.copied_bytes < unit / 2,
        f"a forward pass with checkpoint_every={interval} copies {mebibytes(run.copied_bytes or 0)} to the host",
        "Compute a segment again in backward; what it keeps does not leave the device.",
    )


def require_kept_where_compared(layers: int, trained: Sequence[Trained]) -> None:
    """Fail unless segments are checkpointed in the runs whose gradients are compared as well, by the device's record.

    Otherwise one path of a model could have the right gradients, and another the few bytes.
    """
    for way, run, plain in trained:
        if way.interval is None or run.held_bytes is None or plain.held_bytes is None:
            continue
        what = f"training in float64 with checkpoint_every={way.interval}"
        again = kept_bytes(layers, way.interval, 0.0, 0.0).computed_again
        # The last segment may be kept as a whole.
        most = (1 - again + _LEFT * again) * plain.held_bytes
        require(
            run.held_bytes <= most,
            f"{what} leaves {run.held_bytes:,} bytes for backward, without checkpointing {plain.held_bytes:,}; "
            f"expected {most:,.0f} at most",
            _KEPT_HINT,
        )
        require(
            (run.copied_bytes or 0) < plain.held_bytes / 4,
            f"{what} copies {mebibytes(run.copied_bytes or 0)} to the host",
            "Compute a segment again in backward; what it keeps does not leave the device.",
        )
        # Backward takes twice the products of forward.
        least = (0.99 + SOME_AGAIN * again / 2) * plain.backward_flops
        require(
            run.backward_flops >= least,
            f"{what}: backward computes products of {run.backward_flops:.4g} FLOPs, without checkpointing "
            f"{plain.backward_flops:.4g}; expected {least:.4g} at least",
            "Compute every segment again in backward.",
        )
