"""What an ordinary submission does; nothing here may cost anything."""

import collections
import logging
import os
import platform
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

Point = collections.namedtuple("Point", "x y")


@dataclass(frozen=True)
class Result:
    value: int


def double(x):
    return x * 2


def chatty():
    warnings.warn("careful", stacklevel=1)
    logging.getLogger(__name__).warning("still careful")
    print("hello", file=sys.stdout)
    platform.processor()
    return Point(1, 2).x


def changes_torch_settings():
    import torch

    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    return torch.allclose(torch.ones(2), torch.ones(2))


def writes_where_it_may():
    Path("result.json").write_text("{}")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    return Path("result.json").read_text()


def logs_errors(call):
    try:
        call()
    except LookupError:
        logging.getLogger("training").exception("it failed")
        return traceback.format_exc().splitlines()[-1]


def open_task():
    """Double a number."""
    raise NotImplementedError("Task 1.2 is open: write double in labs/lab1_gpu_basics/honest.py")


def asks_torch_for_what_it_lacks():
    import torch

    return torch.empty(3, device="meta").cpu()


def divides_by_zero():
    return 1 / 0


def one_argument(x):
    return x


def imports():
    """Which names that only exist outside can be imported."""
    import importlib

    found = []
    for name in ("solutions", "tests", "honest", "endings", "conftest", "lab1_gpu_basics", "fake_submission"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        found.append(name)
    return found


def goes_deep(attempt):
    """An honest program with folders in folders."""
    folder = f"results/run{attempt}/seed/model/layer/part"
    os.makedirs(folder)
    open(f"{folder}/late.bin", "w").close()


def hides(attempt):
    """So many files that nobody can keep account of them; or folders that go too deep."""
    if attempt == 0:
        return
    os.makedirs("a/b/c/d/e/f")
    for number in range(9000):
        open(f"a/{number % 7}", "w").close()


def saves(attempt):
    """In one go the first time, by way of another name the second time, and in a folder of its own."""
    if attempt == 0:
        with open("direct.bin", "wb") as file:
            file.write(b"0" * 10)
            file.flush()
            file.write(b"1" * 10)
        return
    os.mkdir("folder")
    with open("folder/new.tmp", "wb") as file:
        file.write(b"2" * 5)
    os.replace("folder/new.tmp", "folder/new.bin")
    os.remove("direct.bin")
