"""Grades criteria on request, one request per line, for a program that shows the result: a notebook.

A line names criteria (`lab1.memory`), or is empty for all. The answer is a line of JSON: `grade`, as in grade.json, and
`asked`, the checks that were really asked; or `error`, a sentence.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from gradebox.authoring.watch.session import Session
from gradebox.common.exit_codes import ExitCode
from gradebox.report.document import to_document
from gradebox.run.grading import Watcher
from gradebox.run.options import Options
from gradebox.run.request import GradingError
from gradebox.run.request_builder import build_request
from gradebox.sandbox import SandboxError


def answer(options: Options, questions: TextIO = sys.stdin, answers: TextIO = sys.stdout) -> ExitCode:
    """Answer until there are no more questions.

    Raises:
        GradingError, ValueError, DeviceError: nothing can be graded; the message is one line.
    """
    order = build_request(options)
    try:
        with Session(order) as session:
            for line in questions:
                answers.write(json.dumps(_answer(session, line.strip())) + "\n")
                answers.flush()
    except SandboxError as error:
        raise GradingError(str(error)) from None
    except KeyboardInterrupt:
        pass
    return ExitCode.PASSED


def _answer(session: Session, criteria: str) -> dict[str, Any]:
    try:
        labs = session.order.course.select(None, criteria)[1] if criteria else None
        round_ = session.again(Watcher(), labs=labs)
    except (GradingError, SandboxError, ValueError) as error:
        return {"error": str(error)}
    return {"grade": to_document(round_.grade), "asked": list(round_.asked)}
