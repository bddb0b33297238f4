"""What an exception is taken for, and the place it is traced to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradebox.sandbox import Reply, Request, Sandbox
from tests.sandbox.sandbox_runs import PROBES, call, place


@pytest.fixture
def importing(tmp_path: Path) -> Iterator[Callable[..., Reply]]:
    """Writes a module of Lab 1 and imports it in a sandbox without torch."""
    module = tmp_path / "lab1_gpu_basics" / "module.py"
    module.parent.mkdir()
    with Sandbox(tmp_path, preload=("numpy",), probe_paths=[PROBES]) as sandbox:

        def run(source: str, probe: str = "call") -> Reply:
            module.write_text(source)
            sandbox.set_submission(tmp_path)
            return sandbox.run(Request(f"drive.{probe}", params={"module": "module", "function": "function"}))

        yield run


def test_an_open_task_is_a_stub_with_its_own_words(sandbox: Sandbox) -> None:
    reply = call(sandbox, "honest", "open_task")
    assert (reply.kind, reply.where) == ("stub", place("honest", "raise NotImplementedError", "open_task"))
    assert reply.message.startswith("Task 1.2 is open")


def test_what_torch_has_not_implemented_is_no_stub(sandbox: Sandbox) -> None:
    reply = call(sandbox, "honest", "asks_torch_for_what_it_lacks")
    assert (reply.kind, reply.error) == ("error", "NotImplementedError")


def test_an_error_has_type_message_place_and_line(sandbox: Sandbox) -> None:
    first = call(sandbox, "honest", "divides_by_zero").first
    assert (first.kind, first.error, first.message) == ("error", "ZeroDivisionError", "division by zero")
    assert (first.where, first.line) == (place("honest", "1 / 0", "divides_by_zero"), "return 1 / 0")


def test_an_error_has_the_call_that_led_to_it(importing: Callable[..., Reply]) -> None:
    source = """
import numpy


class Rude:
    def __repr__(self):
        raise KeyError


def function(a, b=3, *rest, data=None, rude=Rude(), text="x" * 99, **more):
    left = 1
    data = [numpy.zeros((2, 3), dtype="f4")] * 99 if data is None else data
    return inner(data[0])


def inner(value):
    raise ValueError("no")
"""
    first = importing(source.replace("function(a, b=3", "function(a=(1, 2), b=3")).first
    assert first.where == (
        "module.py:17 in inner, in the call function(a=(1, 2), b=3, data=<list of 99>, rude=<Rude>, "
        f"text='{'x' * 56}...)"
    )
    source = "def function(image=__import__('numpy').zeros((2, 3), dtype='f4')):\n    return image[9]\n"
    assert (
        importing(source).first.where
        == "module.py:2 in function, in the call function(image=<float32 of shape (2, 3)>)"
    )
    source = """
class Trainer:
    def __init__(self, steps=3):
        raise ValueError("no")


function = Trainer
"""
    assert importing(source).first.where == "module.py:4 in __init__, in the call Trainer(steps=3)"


def test_a_call_that_was_left_in_the_file_is_named(importing: Callable[[str], Reply]) -> None:
    first = importing("def function(rows):\n    return rows['x']\n\n\nprint(function([]))\n").first
    assert first.kind == "import_error"
    assert first.where == "module.py:2 in function, called by module.py:5 outside of any function"


def test_a_syntax_error_names_file_line_and_source(importing: Callable[[str], Reply]) -> None:
    first = importing("x = 1\ndef broken(:\n    pass\n").first
    assert (first.kind, first.error, first.where) == ("import_error", "SyntaxError", "module.py:2")
    assert first.line == "def broken(:"


def test_a_missing_package_names_the_line_that_wants_it(importing: Callable[[str], Reply]) -> None:
    first = importing("\nimport a_package_nobody_has\n").first
    assert (first.kind, first.error, first.where) == ("import_error", "ModuleNotFoundError", "module.py:2")
    assert first.line == "import a_package_nobody_has"


def test_any_exception_while_importing_is_an_import_error(importing: Callable[[str], Reply]) -> None:
    first = importing("value = undefined\n").first
    assert (first.kind, first.error, first.where) == ("import_error", "NameError", "module.py:1")


def test_leaving_at_import_is_reported(importing: Callable[[str], Reply]) -> None:
    assert importing("import os\nos._exit(0)\n").kind == "crashed"
    assert importing("import sys\nsys.exit(0)\n").first.where == "module.py:2"


def test_a_mended_file_is_seen_in_the_next_grading(importing: Callable[[str], Reply]) -> None:
    assert importing("def function(:\n").kind == "import_error"
    assert importing("def function():\n    return 5\n").value == {"returned": 5}


def test_a_missing_file_is_named(sandbox: Sandbox) -> None:
    reply = call(sandbox, "absent", "function")
    assert reply.kind == "import_error"
    assert "labs/lab1_gpu_basics/absent.py does not exist" in reply.message


def test_a_missing_function_is_the_submissions_error(sandbox: Sandbox) -> None:
    reply = call(sandbox, "honest", "absent")
    assert (reply.kind, reply.where) == ("error", "honest.py")
    assert reply.message == "labs/lab1_gpu_basics/honest.py does not define absent"


def test_a_changed_signature_is_the_submissions_error(sandbox: Sandbox) -> None:
    request = Request("drive.fixed_signature", params={"module": "honest", "function": "one_argument"})
    reply = sandbox.run(request)
    assert (reply.kind, reply.where) == ("error", place("honest", "def one_argument", "one_argument"))
    assert "takes 1 positional argument" in reply.message


@pytest.mark.parametrize(
    ("source", "said", "place"),
    [
        (
            "def function(): ...",
            "function() takes 0 positional arguments but 2 were given; it is defined as function()",
            "module.py:1 in function",
        ),
        (
            "class function:\n    def __init__(self, width=3): ...",
            "but 3 were given; it is defined as function(width=3)",
            "module.py:2 in __init__",
        ),
        ("class function: ...", "function() takes no arguments", "module.py in function"),
        (
            "class Model:\n    def forward(self): ...\ndef function(a, b):\n    return 1\n"
            "import functools\nfunction = functools.partial(Model().forward)",
            "Model.forward() takes 1 positional argument but 3 were given; it is defined as Model.forward()",
            "module.py:2 in forward",
        ),
    ],
    ids=["a function", "a constructor", "a class without one", "a method that a library calls"],
)
def test_whoever_lacks_parameters_is_named_with_those_that_there_are(
    source: str, said: str, place: str, importing: Callable[..., Reply]
) -> None:
    first = importing(source + "\n", probe="fixed_signature").first
    assert (first.kind, first.error, first.where) == ("error", "TypeError", place)
    assert first.message.endswith(said)


def test_what_an_object_of_the_submission_lacks_is_the_submissions_fault(importing: Callable[..., Reply]) -> None:
    first = importing("class Monitor:\n    pass\ndef function():\n    return Monitor()\n", probe="url_of").first
    assert first.kind == "wrong_return"
    assert first.message == "labs/lab1_gpu_basics/module.py: Monitor has no attribute 'url'"


def test_what_a_number_lacks_is_a_bug_of_ours(importing: Callable[..., Reply]) -> None:
    assert importing("def function():\n    return 5\n", probe="url_of").kind == "probe_error"


def test_a_bug_of_ours_is_told_apart(sandbox: Sandbox) -> None:
    first = sandbox.run(Request("drive.broken")).first
    assert (first.kind, first.error, first.where) == ("probe_error", "IndexError", "sandbox/probes/drive.py:52")
    assert "drive.py" in first.traceback


def test_an_unknown_probe_is_a_bug_of_ours(sandbox: Sandbox) -> None:
    assert sandbox.run(Request("nothing.there")).kind == "probe_error"


def test_a_probe_may_refuse_a_return_value(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.wrong_return"))
    assert (reply.kind, reply.message) == ("wrong_return", "double() returned None, expected a number")


def test_warnings_and_prints_cost_nothing(sandbox: Sandbox) -> None:
    reply = call(sandbox, "honest", "chatty")
    assert (reply.kind, reply.notes) == ("ok", ())
    assert reply.ranks[0].stdout == "hello\n"
    assert "careful" in reply.ranks[0].stderr


def test_a_truth_run_has_no_submission(sandbox: Sandbox) -> None:
    assert sandbox.run(Request("drive.about", student=False)).value["present"] is False
    params = {"module": "honest", "function": "double"}
    assert sandbox.run(Request("drive.call", params=params, student=False)).kind == "probe_error"
