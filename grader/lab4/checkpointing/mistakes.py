"""The mistake in checkpointing that ends the programs of two criteria: no gradient without that of the input."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gradebox.run.assertions import Cause, CheckFailed
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab4.checkpointing.cases.draws import by_default
from grader.lab4.checkpointing.cases.types import Equivalence, Way

NO_GRADIENT = Cause(
    "no_gradient_without_that_of_the_input",
    "Use use_reentrant=False. A reentrant checkpoint whose input requires no gradient passes none on.",
    "lab4.checkpointing.gradients_unchanged",
    mistake="No parameter gets a gradient if the input requires none",
)
_NO_GRAPH = "does not require grad"


@contextlib.contextmanager
def ending_without_a_graph(submission: Submission, generator: InputGenerator) -> Iterator[None]:
    """Where backward found no graph, look whether the model gives none, trained by itself with such an input."""
    try:
        yield
    except CheckFailed as error:
        if error.cause is None and _NO_GRAPH in error.message and _gives_no_gradient(submission, generator):
            raise CheckFailed(
                error.message, NO_GRADIENT, answered=error.answered, picture=error.picture, evidence=error.evidence
            ) from None
        raise


def _gives_no_gradient(submission: Submission, generator: InputGenerator) -> bool:
    inputs = Equivalence(case=by_default(generator), ways=[Way(1, False)])
    try:
        (run,) = submission.numeric_probe(inputs).runs
    except CheckFailed:
        return False
    return bool(run.missing == len(run.names))
