"""What a program that starts ranks must say of its GPUs."""

from __future__ import annotations

from grader.lab3.shared.cases.programs import ProgramReply
from grader.shared.programs import require_provenance, require_simulated_pictures


def require_simulation_declared(reply: ProgramReply, *, simulated: bool, what: str) -> None:
    """Fail unless the results that a program wrote say whether its GPUs were virtual, and a picture does if they were.

    Of a picture that another process draws, such as a rank, no words are known.
    """
    require_provenance(reply, what, simulated=simulated)
    if simulated and reply.words:
        require_simulated_pictures(reply, what)
