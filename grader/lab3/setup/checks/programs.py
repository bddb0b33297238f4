"""What the training's program must leave behind, whoever starts its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gradebox.run.assertions import numbers, require, require_equal
from grader.lab3.shared.cases.programs import ProgramReply
from grader.lab3.shared.checks.programs import require_simulation_declared
from grader.shared.programs import picture_and_json

DIGITS = 1438
"""Training images, of which each rank takes half in an epoch."""
_GRADIENT_BYTES = 4 * 19_210
"""Of `labkit.models.mlp()`, which the program trains."""


def require_trained_program(reply: ProgramReply, arguments: Sequence[str], what: str) -> None:
    """Fail unless a program reports the training that these arguments describe."""
    epochs, batch = (int(arguments[arguments.index(name) + 1]) for name in ("--epochs", "--batch-size"))
    rows = picture_and_json(reply, what)
    row = rows[0] if len(rows) == 1 and isinstance(rows[0], dict) else {}
    require(
        bool(row),
        f"{what}: the results hold {len(rows)} rows, expected one DdpTraining",
        "Save the training with labkit.results.save_json.",
    )
    require_equal(row.get("world_size"), 2, what=f"{what}: world_size in {sorted(reply.json)}")
    losses = numbers(row.get("losses"), epochs, f"{what}: losses, one for each epoch")
    require(losses[-1] < losses[0], f"{what}: the loss went from {losses[0]:.4g} to {losses[-1]:.4g}")
    share = -(-DIGITS // 2)
    require_equal(row.get("effective_batch_size"), 2 * batch, what=f"{what}: effective_batch_size")
    require_equal(row.get("optimizer_steps"), epochs * -(-share // batch), what=f"{what}: optimizer_steps")
    require_simulation_declared(reply, simulated="vgpu" in " ".join(arguments), what=what)
    if reply.loopback_bytes is not None:
        least = epochs * -(-share // batch) * _GRADIENT_BYTES  # each of two ranks sends as much, in 32 bits
        require(
            reply.loopback_bytes >= least,
            f"{what}: its processes sent each other {reply.loopback_bytes} bytes, fewer than the {least} of all steps' "
            "gradients",
            "Train in all ranks, each on its share, and in one process group.",
        )
