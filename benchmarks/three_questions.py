"""The three questions in the forms that three graders want: what `other_graders.py` measures with.

Questions, solutions and checks are those of the course `examples/courses/three_questions`; here are wrong answers, and
the tests in the words of otter-grader and nbgrader.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

COURSE = Path(__file__).parents[1] / "examples" / "courses" / "three_questions"
PLACE = "lab1_questions/questions.py"


def _answers(source: str) -> dict[str, str]:
    """The functions of a module by name, as text."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return {node.name: f"{ast.get_source_segment(source, node)}\n" for node in functions}


QUESTIONS = _answers((COURSE / "solutions" / PLACE).read_text(encoding="utf-8"))
WRONG = {**QUESTIONS, "distances": QUESTIONS["distances"].replace("np.sqrt", "")}
TESTS = {
    "normalise_rows": (
        "rng = np.random.default_rng(1)\nvalues = rng.standard_normal((5, 7))\n"
        "assert np.allclose(np.linalg.norm(normalise_rows(values), axis=1), 1)"
    ),
    "moving_average": "assert np.allclose(moving_average(np.arange(5.0), 2), [0.5, 1.5, 2.5, 3.5])",
    "distances": "assert np.allclose(distances(np.array([[0.0, 0.0], [3.0, 4.0]])), [[0, 5], [5, 0]])",
}


def module(answers: dict[str, str]) -> str:
    """A submission as this grader takes it."""
    return "import numpy as np\n\n\n" + "\n\n".join(answers.values())


def notebook(cells: list[dict[str, Any]], **metadata: Any) -> str:
    """A notebook of these cells, as a file."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    numbered = [
        {
            "id": f"cell{number}",
            "metadata": {},
            **({"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}),
            **cell,
        }
        for number, cell in enumerate(cells)
    ]
    document = {"cells": numbered, "metadata": {"kernelspec": kernel, **metadata}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1)


def code(source: str, **metadata: Any) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "metadata": metadata}


def raw(source: str) -> dict[str, Any]:
    return {"cell_type": "raw", "source": source}


def otter_master() -> str:
    """The notebook that `otter assign` makes an assignment of."""
    cells = [
        raw("# ASSIGNMENT CONFIG\nname: questions\ninit_cell: false\ngenerate: true\n"),
        code("import numpy as np"),
    ]
    for name, answer in QUESTIONS.items():
        cells += [
            raw(f"# BEGIN QUESTION\nname: {name}\npoints: 1\n"),
            raw("# BEGIN SOLUTION"),
            code(answer),
            raw("# END SOLUTION"),
            raw("# BEGIN TESTS"),
            code(TESTS[name]),
            raw("# END TESTS"),
            raw("# END QUESTION"),
        ]
    return notebook(cells)


def otter_submission(answers: dict[str, str]) -> str:
    cells = [code("import numpy as np"), *(code(answer) for answer in answers.values())]
    return notebook(cells, otter={"assignment_name": "questions"})


def nbgrader_notebook(answers: dict[str, str], *, release: bool) -> str:
    """The instructor's notebook (`release` false) or a student's, which the same cells make."""
    cells = [code("import numpy as np")]
    for name, answer in answers.items():
        solution = {"grade": False, "grade_id": f"{name}_solution", "locked": False, "schema_version": 3,
                    "solution": True, "task": False}  # fmt: skip
        test = {"grade": True, "grade_id": f"{name}_test", "locked": True, "points": 1, "schema_version": 3,
                "solution": False, "task": False}  # fmt: skip
        body = answer if release else f"### BEGIN SOLUTION\n{answer}### END SOLUTION"
        cells += [code(body, nbgrader=solution), code(TESTS[name], nbgrader=test)]
    return notebook(cells)
