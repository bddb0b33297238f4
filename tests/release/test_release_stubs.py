"""One Python file of the solutions becomes a stub: what is taken out, what is put in, and which marks are refused."""

import re
from pathlib import Path, PurePosixPath

import pytest

from gradebox.authoring.release import ReleaseError, render

SOURCE = '''"""A module."""

import math

# --- solution only ---
SECRET = 41

# --- end ---


def area(radius: float) -> float:
    """Area of a disc."""
    # TODO(task 1.2): square the radius.
    # --- solution: task 1.2 ---
    squared = _square(radius)  # a comment

    # a line of comment does not count
    return math.pi * squared
    # --- end ---


# --- solution only ---
def _square(x: float) -> float:
    return x * x


# --- end ---


def main() -> int:
    return 0
'''


def stub(source: str, *, tasks: frozenset[str] = frozenset({"1.2", "1.3"})) -> str:
    return render(source, path=Path("solutions/lab1/disc.py"), name=PurePosixPath("lab1/disc.py"), tasks=tasks)


def replaced(old: str, new: str) -> str:
    assert old in SOURCE
    return SOURCE.replace(old, new)


def test_the_stub_keeps_everything_but_the_regions() -> None:
    assert (
        stub(SOURCE)
        == '''"""A module."""

import math


def area(radius: float) -> float:
    """Area of a disc."""
    # TODO(task 1.2): square the radius.
    raise NotImplementedError("Task 1.2 is open: write area in labs/lab1/disc.py (about 4 lines)")


def main() -> int:
    return 0
'''
    )


def test_calling_a_stub_names_the_task_the_function_and_the_file() -> None:
    namespace: dict[str, object] = {}
    exec(stub(SOURCE), namespace)
    with pytest.raises(NotImplementedError, match=r"^Task 1\.2 is open: write area in labs/lab1/disc\.py"):
        namespace["area"](1.0)  # type: ignore[operator]


def test_the_lines_of_a_stub_are_counted_with_the_helpers_that_it_needs_first() -> None:
    helpers = '''
# --- solution only ---
FACTOR = 2


def _twice(x: float) -> float:
    return _kept(x) * FACTOR


# --- end ---
# --- solution only ---
def _kept(x: float) -> float:
    return x


# --- end ---
# --- solution only ---
def _nobody() -> None: ...


# --- end ---


def first() -> float:
    """One."""
    # TODO(task 1.2): one.
    # --- solution: task 1.2 ---
    return _twice(1.0)
    # --- end ---


def second() -> float:
    """Two."""
    # TODO(task 1.3): two.
    # --- solution: task 1.3 ---
    return _twice(2.0)
    # --- end ---
'''
    text = stub(helpers)
    assert "write first in labs/lab1/disc.py (about 6 lines)" in text
    assert "write second in labs/lab1/disc.py (about 1 line)" in text


def test_a_method_is_named_with_its_class_and_a_long_message_is_folded() -> None:
    source = '''
class ProductionTrainerWithAVeryLongName:
    def save_checkpoint_atomically(self) -> None:
        """Save."""
        # TODO(task 1.3): save.
        # --- solution: task 1.3 ---
        print("saved")
        # --- end ---
'''
    text = stub(source)
    assert max(map(len, text.splitlines())) <= 120
    namespace: dict[str, type] = {}
    exec(text, namespace)
    name = "ProductionTrainerWithAVeryLongName"
    with pytest.raises(NotImplementedError) as caught:
        namespace[name]().save_checkpoint_atomically()
    expected = f"Task 1.3 is open: write {name}.save_checkpoint_atomically in labs/lab1/disc.py (about 1 line)"
    assert str(caught.value) == expected


def test_code_after_a_region_stays() -> None:
    source = '''
def f() -> int:
    """F."""
    # TODO(task 1.2): compute.
    # --- solution: task 1.2 ---
    x = 1
    # --- end ---
    return x
'''
    assert stub(source).endswith("    return x\n")


def test_the_stub_ends_with_one_newline() -> None:
    assert stub(SOURCE + "\n\n# --- solution only ---\nX = 1\n# --- end ---\n").endswith("return 0\n")


LAST = len(SOURCE.splitlines())
OPEN = "    # --- solution: task 1.2 ---\n    x = 1\n    # --- end ---\n"
END = "    return math.pi * squared\n    # --- end ---\n"


@pytest.mark.parametrize(
    ("source", "line", "complaint"),
    [
        (replaced(END, "    return math.pi * squared\n"), 21, "begins inside the one of line 14"),
        (SOURCE + "# --- solution only ---\n", LAST + 1, "never closed"),
        (SOURCE + "# --- end ---\n", LAST + 1, "closes nothing"),
        (replaced("solution: task 1.2", "solution: task 1.9"), 14, "task 1.9 is unknown; README.md has 1.2, 1.3"),
        (replaced("TODO(task 1.2)", "TODO(task 9.9)"), 13, "task 9.9 is unknown"),
        (replaced("TODO(task 1.2)", "TODO(task 1.3)"), 14, "needs a '# TODO(task 1.2): ...'"),
        (replaced('    """Area of a disc."""\n', ""), 13, "area needs a docstring"),
        (replaced("solution: task 1.2", "solution task 1.2"), 14, "unknown marker 'solution task 1.2'"),
        (replaced("    # --- solution: task 1.2 ---", "    #--- soluton: task 1.2 ---"), 14, "unknown marker"),
        (SOURCE + "if True:\n" + OPEN, LAST + 2, "inside a function"),
        (SOURCE + "class C:\n" + OPEN, LAST + 2, "inside a function"),
    ],
)
def test_a_wrong_mark_is_refused_naming_file_and_line(source: str, line: int, complaint: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(complaint)) as caught:
        stub(source)
    assert str(caught.value).startswith(f"solutions/lab1/disc.py:{line}: ")


def test_a_solution_that_is_not_python_is_refused() -> None:
    with pytest.raises(ReleaseError, match=rf"disc\.py:{LAST + 1}: not valid Python"):
        stub(SOURCE + "def broken(:\n")


def test_a_region_whose_removal_breaks_the_file_is_refused() -> None:
    source = "def f() -> int:\n    # --- solution only ---\n    return 1\n    # --- end ---\n"
    with pytest.raises(ReleaseError, match="without the marked regions it is not valid Python"):
        stub(source)
