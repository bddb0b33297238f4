"""What a submission's source is noted for, and what it is not."""

from __future__ import annotations

import pytest

import grader
from gradebox.run import source_scan
from gradebox.run.grade import IntegrityNote
from tests.scenarios.build import ROOT

COURSE = grader.course()
LABS = COURSE.rubric.select((1,))


def notes(text: str, path: str = "lab1_gpu_basics/benchmark.py") -> tuple[IntegrityNote, ...]:
    return source_scan.notes({path: text.encode()}, LABS, COURSE)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("frame = error.__traceback__.tb_frame", "tb_frame"),
        ("f = frame.f_back", "f_back"),
        ("object.__subclasses__()", "__subclasses__"),
        ("changed.__code__ = other", "__code__"),
        ("import sys\nsys.modules['x'] = 1", "sys.modules"),
        ("from sys import modules", "sys.modules"),
        ("import gc\ngc.get_objects()", "gc.get_objects"),
        ("import vgpu.device.cost as c", "import vgpu.device.cost"),
        ("from grader.lab1.benchmark import probes", "import grader.lab1.benchmark"),
        ("import gradebox.sandbox.audit", "import gradebox.sandbox.audit"),
        ("from gradebook import store", "import gradebook"),
        ("import ctypes", "import ctypes"),
        ("exec('1')", "exec()"),
        ("match frame:\n    case object(f_back=above):\n        pass", "f_back"),
        ("from importlib.machinery import SourceFileLoader", "import importlib.machinery"),
        ("import zipimport", "import zipimport"),
        ("import mmap", "import mmap"),
        ("from mmap import ACCESS_WRITE, mmap", "import mmap"),
        ("numpy.memmap('file', mode='w+')", "memmap"),
        ("from torch.utils._python_dispatch import _disable_current_modes", "_disable_current_modes"),
        ("import torch\ntorch._C._DisableTorchDispatch()", "_DisableTorchDispatch"),
        ("getattr(frame, 'f_back')", "f_back"),
        ("getattr(frame, 'f_' + 'ba' + 'ck')", "f_back, put together"),
        ("getattr(frame, f'f_{\"back\"}')", "f_back, put together"),
        ("vars(numpy)['_'.join(['f', 'back'])]", "f_back, put together"),
        ("__import__('cty' + 'pes')", "ctypes, put together"),
        ("numpy.ctypeslib", "ctypeslib"),
        ("from numpy.lib.stride_tricks import as_strided", "import numpy.lib.stride_tricks"),
        ("class Bytes:\n    __array_interface__ = {}", "__array_interface__"),
        (
            "import torch\ntorch._C._dispatch_tls_set_dispatch_key_excluded(key, True)",
            " _C._dispatch_tls_set_dispatch_key_excluded,",
        ),
        ("import torch.distributed as dist\ndist.distributed_c10d._world.pg_map.clear()", "_world.pg_map.clear,"),
        ("from torch.distributed import distributed_c10d as c\nc._world = c", "_world,"),
        ("import torch\nt = torch\nt._C.x", "_C.x,"),
        ("__import__('torch')._C", "_C,"),
        ("import importlib as i\ni.import_module('torch._C')", "_C,"),
        ("from torch.distributed.distributed_c10d import _world", "_world,"),
        ("import torch._dynamo.eval_frame", "_dynamo.eval_frame"),
        ("import torch\ngetattr(torch, '_' + 'C')", "_C,"),
        ("import torch\nvars(torch)['_C']", "_C,"),
    ],
)
def test_reaching_for_the_grader_is_noted_with_its_line(text: str, named: str) -> None:
    (note,) = notes(text)
    assert (note.kind, note.check) == ("source", "lab1")
    assert named in note.detail
    assert note.where.startswith("lab1_gpu_basics/benchmark.py:")
    assert int(note.where.partition(":")[2]) in (len(text.splitlines()), 2)


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import gc\ngc.collect()",
        "compile = 1",
        "torch.load(path, mmap=True)",
        "not python at all (",
        "x = 'vgpu'",
        "'a' + " * 99 + "'b'",
        "import torch\ntorch.amp.GradScaler()._found_inf_per_device(optimizer)",
        "import os\nos._exit(1)",
        "point._replace(x=1)",
        "from labkit.results import Point\nPoint._make(row)",
        "import torch\ntorch._dynamo.config.suppress_errors = True",
        "import torch\ntorch._foreach_mul_(parameters, 2)",
        "for _, x in rows:\n    print(x['_total'], name + '_total')\nrows['_total'] = 1",
        "from .ranks import _helper\n_helper()",
        "from labs.lab3_distributed import ranks\nranks._helper()",
    ],
)
def test_ordinary_source_is_not_noted(text: str) -> None:
    assert notes(text) == ()


def test_a_file_of_a_lab_that_is_not_graded_is_passed_over() -> None:
    assert notes("import vgpu", "lab2_mixed_precision/amp_training.py") == ()


def test_a_helper_beside_the_labs_is_read_too() -> None:
    assert len(notes("import vgpu", "helper.py")) == 1


def test_a_folder_that_only_begins_like_a_lab_is_read_too() -> None:
    (note,) = notes("import ctypes", "labyrinth/evil.py")
    assert note.check == "lab1"


def test_what_is_too_large_to_be_read_is_named() -> None:
    (note,) = notes("x = 1\n" * 50_000)
    assert note.detail == "lab1_gpu_basics/benchmark.py was not looked at: it has 300000 bytes"
    many = {f"lab1_gpu_basics/file{number}.py": b"x = 1\n" * 40_000 for number in range(6)}
    findings = source_scan.notes({**many, "lab1_gpu_basics/benchmark.py": b"import ctypes"}, LABS, COURSE)
    assert [note.detail for note in findings].count("lab1_gpu_basics/benchmark.py names import ctypes") == 1
    assert sum("was not looked at" in note.detail for note in findings) == 2


def test_files_of_one_name_are_told_apart() -> None:
    files = {
        "helper.py": b"import vgpu",
        "tools/helper.py": b"import vgpu",
        "lab1_gpu_basics/helper.py": b"import vgpu",
    }
    findings = source_scan.notes(files, LABS, COURSE)
    assert {note.where for note in findings} == {f"{path}:1" for path in files}
    assert len({note.detail for note in findings}) == 3


def test_one_file_without_end_gives_a_limited_number_of_notes() -> None:
    files = {f"lab1_gpu_basics/a{number}.py": b"import vgpu" for number in range(100)}
    assert len(source_scan.notes(files, LABS, COURSE)) == 32


def test_the_reference_and_every_correct_style_leave_no_note() -> None:
    labs = COURSE.labs
    for folder in (ROOT / "solutions", *(ROOT / "tests" / "scenarios").glob("*/variants/*")):
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.py")}
        assert source_scan.notes(files, labs, COURSE) == (), folder


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"# coding: rot13\nvzcbeg bf\n", "it declares the encoding rot13"),
        (b"# -*- coding: made_up_by_me -*-\nx = 1\n", "unknown encoding: made_up_by_me"),
        (b"# coding: latin-1\nname = '\xe9'\n", "is not UTF-8"),
        (b"# coding: latin-1\nx = 1\n", "it declares the encoding iso-8859-1"),
        ("x = 1\n".encode("utf-16"), "invalid or missing encoding declaration"),
        (b"x = 1\nname = '\xe9'\n", "is not UTF-8"),
        (b"x = " + b"-" * 100_000 + b"1", "when it is parsed"),
    ],
)
def test_a_file_that_python_may_read_otherwise_than_its_reader_is_named(content: bytes, why: str) -> None:
    (note,) = source_scan.notes({"lab1_gpu_basics/benchmark.py": content}, LABS, COURSE)
    assert note.detail.startswith("lab1_gpu_basics/benchmark.py is not plain UTF-8 Python: ")
    assert why in note.detail
