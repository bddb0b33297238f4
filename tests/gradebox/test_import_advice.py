"""What a student is told whose module cannot be imported."""

from __future__ import annotations

import pytest

from gradebox.run import import_advice

ABSENT = "labs/lab1_gpu_basics/environment.py does not exist in the submission (No module named 'x')"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            ["lab1_gpu_basics/REPORT.md", "lab1_gpu_basics/benchmark.py", "README.md"],
            "lab1_gpu_basics holds REPORT.md, benchmark.py: add environment.py, as the hand-out has it",
        ),
        (
            ["lab1_gpu_basics/enviroment.py"],
            "lab1_gpu_basics holds enviroment.py; its name must be environment.py, to the letter: rename it",
        ),
        *(
            (
                [f"lab1_gpu_basics/{other}", "lab1_gpu_basics/benchmark.py"],
                f"lab1_gpu_basics holds {other}; its name must be environment.py, to the letter: rename it",
            )
            for other in (
                "Kopie von environment.py",
                "environment - Copy.py",
                "environment.py~",
                "environment.py.txt",
                "my_environment_final_v2.py",
            )
        ),
        *(
            (
                [f"lab1_gpu_basics/{other}", "lab1_gpu_basics/benchmark.py"],
                f"lab1_gpu_basics holds {other}, a shortcut without the file itself: hand in environment.py",
            )
            for other in (".environment.py.icloud", "environment.py.lnk", "environment.gdoc")
        ),
        (
            ["lab1_gpu_basics/helpers_of_environment.py", "lab1_gpu_basics/benchmark.py"],
            "lab1_gpu_basics holds helpers_of_environment.py, benchmark.py: add environment.py, as the hand-out has it",
        ),
        (
            ["lab1_gpu_basics/src/environment.py", "lab1_gpu_basics/REPORT.md"],
            "the submission has lab1_gpu_basics/src/environment.py; move it to lab1_gpu_basics/environment.py",
        ),
        (
            ["lab1_gpu_basics/lab1_gpu_basics/environment.py"],
            "the submission has lab1_gpu_basics/lab1_gpu_basics/environment.py; move it to "
            "lab1_gpu_basics/environment.py",
        ),
        (
            ["lab1_gpu_basics/benchmark.py", "environment.py"],
            "the submission has environment.py; move it to lab1_gpu_basics/environment.py",
        ),
        (
            ["lab1_gpu_basics/benchmark.py", "lab2_mixed_precision/environment.py"],
            "the submission has lab2_mixed_precision/environment.py; move it to lab1_gpu_basics/environment.py",
        ),
        (
            ["course/labs/lab1_gpu_basics/environment.py", "course/README.md"],
            "lab1_gpu_basics is in the folder course/labs: hand in, or name, course/labs",
        ),
        (
            ["lab1_basics/environment.py", "lab2_mixed_precision/numerics.py"],
            "the folder lab1_basics must be called lab1_gpu_basics, to the letter: rename it",
        ),
        (["Lab 1/environment.py"], "the folder Lab 1 must be called lab1_gpu_basics, to the letter: rename it"),
        (
            ["environment.py", "benchmark.py"],
            "environment.py must be in a folder lab1_gpu_basics: make that folder, and hand in, or name, the folder "
            "that holds it",
        ),
        (
            ["lab2_mixed_precision/numerics.py", "README.md"],
            "there is no folder lab1_gpu_basics: add it next to what is there (README.md, lab2_mixed_precision)",
        ),
        (
            ["lab2_mixed_precision/environment.py"],
            "there is no folder lab1_gpu_basics: add it next to what is there (lab2_mixed_precision)",
        ),
        (["src/environment.py"], "the submission has src/environment.py; move it to lab1_gpu_basics/environment.py"),
        (["lab1_gpu_basics/__init__.py"], "the folder is empty: hand in, or name, the folder that holds lab1_gpu_b"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_what_is_said_of_a_layout_is_true_of_it(files: list[str], said: str) -> None:
    assert import_advice.hint(ABSENT, files).startswith(said)


def test_a_helper_that_was_not_handed_in_and_a_folder_of_another_name_are_named() -> None:
    called = "the folder is called lab1_gpu_basics here, and not lab1_basics: from labs.lab1_gpu_basics import ..."
    lacking = "cannot import name 'tools' from 'labs.lab1_basics' (/submission/labs/lab1_basics/__init__.py) at a.py:1"
    for message, files, advice in (
        ("No module named 'lab1_basics'", ["lab1_gpu_basics/a.py"], called),
        (lacking, ["lab1_basics/a.py"], "lab1_basics holds a.py: add tools.py"),
    ):
        assert import_advice.hint(message, files) == advice
        assert import_advice.is_elsewhere(message, advice)
    assert import_advice.hint(lacking, ["lab1_basics/a.py", "lab1_basics/tools.py"]) == ""
