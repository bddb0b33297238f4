"""Code that behaves differently from run to run: where it draws, and what is said of it."""

from __future__ import annotations

import ast

import pytest

from gradebox.run import chance, source_scan
from gradebox.run.grade import CheckReport, Outcome


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import random\nX = random.random() < 0.5\n", 2),
        ("import numpy as np\n\n\nclass A:\n    seed = np.random.randint(9)\n", 5),
        ("from time import time\n\n\ndef f(at=time()):\n    return at\n", 4),
        ("import random\n\n\ndef coin():\n    return random.choice([0, 1])\n\n\nif coin():\n    raise OSError\n", 8),
        ("import random\n\n\ndef f():\n    return random.random()\n", 0),
        ("import time\nif __name__ == '__main__':\n    print(time.time())\n", 0),
        ("f = lambda: __import__('random').random()\n", 0),
        ("def broken(\n", 0),
    ],
)
def test_what_is_drawn_while_a_module_is_imported_is_found(code: str, line: int) -> None:
    files = {"lab1_x/a.py": code.encode(), "lab2_x/b.py": b"import random\nX = random.random()\n"}
    assert source_scan.draw(files, "lab1_x").place == (f"lab1_x/a.py:{line}" if line else "")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import random\nif random.random() < 0.5:\n    f = 1\nelse:\n    f = 2\n", 2),
        ("import time\nf = [1, 2][time.time_ns() & 1]\n", 2),
        ("import os\nX = os.urandom(1)[0]\nY = X % 2\n\n\ndef f():\n    return 1 if Y else 2\n", 7),
        ("def toss():\n    return hash('a') & 1\n\n\ndef flip():\n    return toss()\n\n\nwhile flip():\n    pass\n", 9),
        ("import random\nX = random.random() < 0.5 and print()\n", 2),
        ("from datetime import datetime\nmatch datetime.now().second:\n    case 1:\n        x = 1\n", 2),
        ("import random\nX = random.random()\n", 0),
        ("import random\nrandom.seed(0)\nif random.random() < 0.5:\n    f = 1\n", 0),
        ("import numpy as np\nrng = np.random.default_rng(7)\nif rng.random() < 0.5:\n    f = 1\n", 0),
        ("import numpy as np\nif np.random.default_rng(7).random() < 0.5:\n    f = 1\n", 0),
        ("import torch\n\n\ndef dropout(x, p):\n    return x if torch.rand(1) < p else 0 * x\n", 0),
        ("import time\nX = time.time()\n\n\ndef f(X):\n    return 1 if X else 2\n", 0),
        ("import time\nSTART = time.time()\n\n\ndef elapsed():\n    return time.time() - START\n", 0),
    ],
)
def test_a_draw_that_decides_which_code_runs_is_noted(code: str, line: int) -> None:
    assert chance.decision(ast.parse(code)) == (line or None)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import random\n\n\ndef f(x):\n    return x if random.random() < 0.5 else 2 * x\n", 5),
        ("import time\n\n\nclass A:\n    def f(self):\n        if time.time_ns() & 1:\n            return 1\n", 6),
        ("def toss():\n    return hash('a') & 1\n\n\ndef f():\n    while toss():\n        pass\n", 6),
        ("import torch\nf = lambda x: x if torch.rand(1) < 0.5 else 0 * x\n", 2),
        ("def f(generator):\n    return 1 if generator.random() < 0.5 else -1\n", 0),
        ("class A:\n    def f(self):\n        return 1 if self.rng.random() < 0.5 else -1\n", 0),
        ("import torch\n\n\ndef f(x, g):\n    return x if torch.rand(1, generator=g) < 0.5 else 0 * x\n", 0),
        ("import random\n\n\ndef f(n):\n    return [random.random() for _ in range(n)]\n", 0),
    ],
)
def test_a_function_that_decides_by_a_draw_of_its_own_is_found(code: str, line: int) -> None:
    files = {"lab1_x/a.py": code.encode()}
    drawn = source_scan.draw(files, "lab1_x")
    assert drawn.place == (f"lab1_x/a.py:{line}" if line else "")
    if line:
        assert not drawn.at_import
        failed = CheckReport(Outcome.FAILED, "saw 1, expected 2")
        said = drawn.reported(failed, CheckReport(Outcome.PASSED))
        assert said.message.endswith("it passed; so your code behaves differently from run to run")
        assert said.hint.startswith(f"lab1_x/a.py:{line} lets a draw of its own, or the clock, decide which code runs")
        assert drawn.reported(failed, failed) == failed


def test_what_an_import_draws_is_named_first() -> None:
    inside = "import random\n\n\ndef f(x):\n    return x if random.random() < 0.5 else 2 * x\n"
    files = {"lab1_x/a.py": inside.encode(), "lab1_x/b.py": b"import random\nX = random.random()\n"}
    drawn = source_scan.draw(files, "lab1_x")
    assert (drawn.place, drawn.at_import) == ("lab1_x/b.py:2", True)
