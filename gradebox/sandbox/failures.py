"""What an exception in the child means: whose fault it is, and where in the submission it came from.

Runs in the child, on exceptions of untrusted code, so it trusts none of their methods. Not for how processes end
(`supervisor.py`).
"""

from __future__ import annotations

import dis
import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Sequence
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any

from gradebox.sandbox.devices import Simulator
from gradebox.sandbox.types import DEFINED_AS

MAX_MESSAGE = 4000
_MAX_TRACEBACK = 16000
_MAX_CALL, _MAX_ARGUMENT, _MAX_SHOWN = 240, 60, 20
"""Characters of a call in a message, and of one of its arguments; items of a list that is written out."""
_SIGNATURE = re.compile(r"([\w.<>]*\w)\(\) (?:takes|missing|got (?:an unexpected|multiple|some positional))")
_UNCALLED = re.compile(r"'(\w+)' object is not callable")
_INTERNAL = frozenset({"AttributeError", "KeyError", "AssertionError", "NameError", "UnboundLocalError"})
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|Cannot allocate memory")


def describe(
    error: BaseException,
    *,
    submission: str,
    importing: Sequence[str],
    probe_folders: Sequence[str],
    simulator: Simulator | None = None,
) -> dict[str, Any]:
    """The fields of a `RankReply` for `error`.

    Args:
        submission: folder of the submission's copy (the parent of `labs`).
        importing: modules of the submission whose import the error interrupted.
        probe_folders: where probes live; an error from there that the submission has no part in is a `probe_error`.
        simulator: whose limits and mistakes no student has to answer for.
    """
    prefix = submission.rstrip("/") + "/labs/"
    frames = list(_frames(error.__traceback__))
    ours = [(frame, line) for frame, line in frames if frame.f_code.co_filename.startswith(prefix)]
    where, line = _place(error, ours, prefix)
    message = _message(error)
    name = type(error).__name__
    kind = _kind(error, name, message, _raised_by(error, prefix), importing, simulator)
    if kind is None:
        blamed = _provoked(error, frames, probe_folders)
        if blamed is not None:
            kind, (message, where) = "error", (blamed[0] or message, blamed[1])
        elif not ours and (lacking := _lacking(error)):
            kind, message = "wrong_return", lacking
        else:
            kind = "error" if ours else "probe_error"
            where = where or _probe_place(frames, probe_folders)
    if kind == "error" and ours and not importing and (call := _call(ours[0][0])):
        where = f"{where}, in the call {call}"
    elif kind == "import_error" and ours and (line_of_import := _outside_functions(ours)):
        where = f"{where}, called by {line_of_import} outside of any function"
    if kind == "import_error" and isinstance(error, ModuleNotFoundError) and where is None and importing:
        message = f"labs/{importing[0].replace('.', '/')}.py does not exist in the submission ({message})"
    return {
        "kind": kind,
        "error": name,
        "message": message,
        "where": where,
        "line": line,
        "traceback": _text(error, submission),
    }


def _kind(
    error: BaseException,
    name: str,
    message: str,
    raised_here: bool,
    importing: Sequence[str],
    simulator: Simulator | None,
) -> str | None:
    """The kind where it follows from the error itself, else None."""
    declared = getattr(type(error), "sandbox_kind", None)
    if declared == "wrong_return" and _root(type(error)) in ("gradebox", "probes"):
        return "wrong_return"
    unable = simulator is not None and name == simulator.unsupported and _root(type(error)) == simulator.package
    if unable and not raised_here:
        return "unsupported"
    if isinstance(error, NotImplementedError) and raised_here:
        return "stub"
    if simulator is not None and _broke_in(simulator.package, error, name, message):
        return "unsupported"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(message)):
        return "memory"
    if importing:
        return "import_error"
    return None


def _broke_in(package: str, error: BaseException, name: str, message: str) -> bool:
    """Whether the simulator `package` itself failed.

    Its deliberate errors are those of the real device and carry other types, or are raised by a line that says so.
    """
    frames = list(_frames(error.__traceback__))
    if not frames or str(frames[-1][0].f_globals.get("__name__", "")).partition(".")[0] != package:
        return False
    frame, number = frames[-1]
    if linecache.getline(frame.f_code.co_filename, number).strip().startswith("raise "):
        return False
    return name in _INTERNAL or (name == "TypeError" and _SIGNATURE.match(message) is not None)


def _raised_by(error: BaseException, prefix: str) -> bool:
    """Whether a `raise` statement below `prefix` raised it; torch's own NotImplementedErrors come out of calls."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None or not step.tb_frame.f_code.co_filename.startswith(prefix):
        return False
    return step.tb_frame.f_code.co_code[step.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _root(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _provoked(
    error: BaseException, frames: list[tuple[FrameType, int]], probe_folders: Sequence[str]
) -> tuple[str, str | None] | None:
    """Message and place when what the submission defines, or does not define, made a probe's own line fail.

    A missing function or a changed signature raises in the probe's frame, yet is the submission's mistake. A library
    may have made the call: PyTorch calls `forward`.
    """
    if not frames:
        return None
    if isinstance(error, TypeError) and (match := _SIGNATURE.match(str(error))):
        return _unfit(match[1], str(error))
    if not frames[-1][0].f_code.co_filename.startswith(tuple(probe_folders)):
        return None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        owner = error.obj.__name__
        if owner.startswith("labs."):
            path = owner.replace(".", "/") + ".py"
            return f"{path} does not define {error.name}", os.path.basename(path)
    if isinstance(error, TypeError) and (match := _UNCALLED.match(str(error))):
        return _uncalled(match[1], [frame for frame, _ in frames])
    return None


def _unfit(name: str, message: str) -> tuple[str, str | None] | None:
    """Message and place of a function or a class of the submission, by its qualified name, that takes other arguments.

    The message shows the parameters that it has.
    """
    for owner, module in list(sys.modules.items()):
        if not owner.startswith("labs."):
            continue
        defined = _by_name(module, name)
        if defined is None:
            continue
        path = f"{owner.replace('.', '/')}.py"
        if isinstance(defined, type):
            return message, f"{os.path.basename(path)} in {defined.__qualname__}"
        code = defined.__code__
        shown = name.removesuffix(".__init__")
        return (
            f"{message}{DEFINED_AS} {shown}{_parameters(defined)}",
            f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} in {code.co_name}",
        )
    return None


def _by_name(module: ModuleType, name: str) -> Any:
    """A function or a class that a module of the submission defines, by its qualified name; None where there is none.

    A class is asked for what it defines itself: what it inherits is somebody else's.
    """
    parts = name.split(".")
    member = vars(module).get(parts[0])
    for part in parts[1:]:
        if not isinstance(member, type):
            return None
        defined = member.__dict__.get(part)
        if defined is None and part == "__init__" and _root(member) == "labs":
            return member  # it has none of its own
        member = _bare(defined)
    if isinstance(member, type):
        return member if _root(member) == "labs" else None
    code = getattr(member, "__code__", None)
    return member if isinstance(code, CodeType) and os.sep + "labs" + os.sep in code.co_filename else None


def _bare(defined: Any) -> Any:
    """The function itself: behind a class method, or behind what a library wraps around it, as PyTorch does `step`."""
    function = getattr(defined, "__func__", defined)
    try:
        return inspect.unwrap(function) if isinstance(function, FunctionType) else function
    except ValueError:  # it wraps itself
        return function


def _parameters(function: Any) -> str:
    """The parameters of a function as they are written, without types."""
    try:
        signature = inspect.signature(function)
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
        if "." in function.__qualname__ and bare and bare[0].name in ("self", "cls"):
            bare = bare[1:]
        text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    except BaseException:  # its defaults may be the submission's objects
        return "(...)"
    return text if len(text) <= _MAX_CALL else f"{text[: _MAX_CALL - 4]}...)"


def _uncalled(kind: str, frames: Sequence[FrameType]) -> tuple[str, str | None] | None:
    """Message and place of what the submission defines as a plain `kind`, and a probe called."""
    names = {name for frame in frames for name in frame.f_code.co_names}
    values = [value for frame in frames for value in frame.f_locals.values()]
    for owner, module in list(sys.modules.items()):
        for name, value in list(vars(module).items()) if owner.startswith("labs.") else ():
            if type(value).__name__ != kind or name.startswith("__"):
                continue
            if name in names or name in values or any(value is other for other in values):
                path = owner.replace(".", "/") + ".py"
                return f"{path}: {name} must be a function, but it is of type {kind}", os.path.basename(path)
    return None


def _lacking(error: BaseException) -> str | None:
    """What an object of a class of the submission lacks that a probe asked it for; None for any other error.

    Probes ask for nothing that no docstring promises.
    """
    if not isinstance(error, AttributeError):
        return None
    kind = error.obj if isinstance(error.obj, type) else type(error.obj)
    owner = type.__dict__["__module__"].__get__(kind)  # not by its metaclass, which may be the submission's too
    if type(owner) is not str or not owner.startswith("labs."):
        return None
    return f"{owner.replace('.', '/')}.py: {kind.__name__} has no attribute {error.name!r}"


def _frames(step: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames = []
    while step is not None:
        frames.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return frames


def _place(error: BaseException, ours: list[tuple[FrameType, int]], prefix: str) -> tuple[str | None, str | None]:
    """Innermost place in the submission and its source line; a syntax error names its own."""
    if isinstance(error, SyntaxError) and str(error.filename).startswith(prefix):
        return f"{os.path.basename(str(error.filename))}:{error.lineno}", str(error.text or "").strip() or None
    if not ours:
        return None, None
    frame, number = ours[-1]
    code = frame.f_code
    line = linecache.getline(code.co_filename, number).strip() or None
    return place(code.co_filename, number, code.co_name), line


def place(path: str, line: int, function: str) -> str:
    """`benchmark.py:41 in benchmark_matmul`, the form in which places are shown everywhere."""
    inside = "" if function == "<module>" else f" in {function}"
    return f"{os.path.basename(path)}:{line}{inside}"


def _outside_functions(ours: list[tuple[FrameType, int]]) -> str:
    """The last line of a file as such, which called the function that failed; empty if it failed itself."""
    files = [(frame.f_code, number) for frame, number in ours if frame.f_code.co_name == "<module>"]
    code, number = files[-1] if files else (ours[-1][0].f_code, 0)
    return "" if code is ours[-1][0].f_code else place(code.co_filename, number, code.co_name)


def _probe_place(frames: list[tuple[FrameType, int]], probe_folders: Sequence[str]) -> str | None:
    """The innermost line of a probe, by its path below the course."""
    folders = tuple(probe_folders)
    of_probe = [(frame, line) for frame, line in frames if frame.f_code.co_filename.startswith(folders)]
    if not of_probe:
        return None
    frame, line = of_probe[-1]
    return f"{'/'.join(frame.f_code.co_filename.split('/')[-3:])}:{line}"


def _call(frame: FrameType) -> str:
    """The call that a probe made, with its arguments as they were when it failed; empty where it has none."""
    code = frame.f_code
    if code.co_name.startswith("<"):
        return ""
    count = code.co_argcount + code.co_kwonlyargcount
    names = [name for name in code.co_varnames[:count] if name not in ("self", "cls")]
    arguments = [f"{name}={_shown(frame.f_locals[name])}" for name in names if name in frame.f_locals]
    if not arguments:
        return ""
    name = code.co_name
    if name == "__init__":  # called by the name of its class
        name = code.co_qualname.removesuffix(".__init__").rpartition(".")[2]
    text = f"{name}({', '.join(arguments)})"
    return text if len(text) <= _MAX_CALL else f"{text[: _MAX_CALL - 4]}...)"


def _shown(value: object) -> str:
    """An argument in a few characters; of arrays and tensors what distinguishes them."""
    try:
        if type(value) in (bool, int, float, str, type(None)):
            text = repr(value)
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            text = f"<{str(value.dtype).rpartition('.')[2]} of shape {tuple(value.shape)}>"
        elif isinstance(value, (list, tuple, dict)):
            plain = type(value) in (list, tuple, dict) and len(value) <= _MAX_SHOWN
            text = repr(value) if plain else ""
            text = text if 0 < len(text) <= _MAX_ARGUMENT else f"<{type(value).__name__} of {len(value)}>"
        else:
            text = f"<{type(value).__name__}>"
    except BaseException:  # its class may be the submission's
        return "..."
    return text if len(text) <= _MAX_ARGUMENT else f"{text[: _MAX_ARGUMENT - 3]}..."


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the code asked the interpreter to exit with status {error.code!r}"[:MAX_MESSAGE]
    if isinstance(error, SyntaxError):
        return str(error.msg)[:MAX_MESSAGE]
    try:
        return str(error)[:MAX_MESSAGE]
    except BaseException:  # the exception's class is the submission's
        return "<its text could not be made>"


def _text(error: BaseException, submission: str) -> str:
    try:
        text = "".join(traceback.format_exception(error, limit=40))
    except BaseException:  # as above
        return ""
    return text.replace(submission.rstrip("/") + "/", "")[-_MAX_TRACEBACK:]
