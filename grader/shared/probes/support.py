"""What probes share: reading a student's return values, and running lab programs.

Runs in the sandboxed child beside the student's code. Values are copied into plain JSON types at once, so a class that
claims to be a number is read as the number it converts to.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from gradebox.sandbox.probe_loader import Student, WrongReturn
from grader.shared.cases import Picture
from grader.shared.probes.figures import watch_png
from grader.shared.probes.ink import seen
from grader.shared.probes.looks import files_below, read_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Transform

T = TypeVar("T")
MatplotlibClass: TypeAlias = Any
"""A class of matplotlib's whose annotations promise all that NumPy would take for an array."""
StudentObject: TypeAlias = Any
"""An object, a class or a function of the submission's. It may have any attributes, and these may be anything."""
Annotation: TypeAlias = Any
"""A type, or what else an annotation may be."""
Json: TypeAlias = Any
"""A value of the submission's as JSON has it; what it must be, a check says."""


def fields(value: object, kind: type, what: str) -> dict[str, Json]:
    """The fields of a returned dataclass as plain JSON values.

    Args:
        value: what the student's function returned.
        kind: the labkit dataclass that its docstring promises.
        what: the call, for the message.

    Raises:
        WrongReturn: `value` is not a `kind`, or a field has no plain value.
    """
    if not isinstance(value, kind):
        names = ", ".join(_names(kind))
        raise WrongReturn(
            f"{what} returned {described(value)}; return {_article(kind.__name__)}: import it from labkit.results, its "
            f"fields are {names}"
        )
    values = {name: plain(getattr(value, name), f"{what}.{name}") for name in _names(type(value))}
    _require_form(values, kind, what)
    return values


def _names(kind: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def fields_or_reason(value: object, kind: type, what: str) -> dict[str, Json]:
    """As `fields`; of a value that is no `kind` only the reason, as `wrong_return`.

    For functions that are judged by what they do as well: only the checks of what is reported need the fields
    (`grader.shared.results`).
    """
    try:
        return fields(value, kind, what)
    except WrongReturn as error:
        return {"wrong_return": str(error)}


def _require_form(value: Json, kind: Annotation, what: str) -> None:
    """Fail unless a plain value has the fields of the dataclass `kind`, and so do those dataclasses that lie in it.

    What else is in a field is not looked at: checks say what they want of it.
    """
    if not isinstance(value, dict) or any(name not in value for name in _names(kind)):
        raise WrongReturn(f"{what} is {described(value)}, expected a labkit.results.{kind.__name__}")
    for name, declared in typing.get_type_hints(kind).items():
        inner = typing.get_args(declared)[:1] if typing.get_origin(declared) is tuple else ()
        if dataclasses.is_dataclass(declared):
            _require_form(value[name], declared, f"{what}.{name}")
        elif inner and dataclasses.is_dataclass(inner[0]):
            if not isinstance(value[name], list):
                raise WrongReturn(f"{what}.{name} is {described(value[name])}, expected a tuple")
            for index, item in enumerate(value[name]):
                _require_form(item, inner[0], f"{what}.{name}[{index}]")


_EXACT: dict[type, Callable[[Any], int | float | str]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}
"""What makes a builtin of a subclass's instance, whatever that has in its place."""


def _text(value: object) -> str:
    return str.__str__(str(value))


def plain(value: object, what: str) -> Json:
    """`value` as JSON: numbers of NumPy and 0-d tensors become Python's, tuples become lists, dataclasses objects.

    Raises:
        WrongReturn: for anything else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, Mapping):
        return {_text(key): plain(item, f"{what}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{what}[{index}]") for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name), f"{what}.{field.name}") for field in dataclasses.fields(value)
        }
    for base, exactly in _EXACT.items():
        if issubclass(type(value), base):  # a class may claim to be another, and convert to a subclass
            return exactly(value)
    if callable(getattr(value, "item", None)):
        number = value.item()  # type: ignore[attr-defined]
        if type(number) in (bool, int, float):
            return number
    raise WrongReturn(f"{what} is {described(value)}, expected a number, a string or a sequence of them")


def instance(value: object, kind: type[T], what: str) -> T:
    """`value`, which a docstring promises to be a `kind`; a tensor without what a class of its own says of it.

    Raises:
        WrongReturn: for anything else.
    """
    if not issubclass(type(value), kind):
        name = f"torch.{kind.__name__}" if kind.__module__.partition(".")[0] == "torch" else kind.__name__
        raise WrongReturn(f"{what} returned {described(value)}; return {_article(name)}")
    return cast(T, exact(value, what))


def exact(value: T, what: str) -> T:
    """A tensor of a class of the submission's as a `torch.Tensor`: what its class says of its dtype or shape may be a
    lie. Anything else as it is.

    Raises:
        WrongReturn: it is a tensor that holds no data of its own.
    """
    if not issubclass(type(value), Tensor) or type(value) in (Tensor, torch.nn.Parameter):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        data = _as_subclass(cast(Tensor, value), Tensor)
    if torch._C._dispatch_keys(data).has(torch._C.DispatchKey.Python):
        raise WrongReturn(f"{what} is a {type(value).__name__}, expected a torch.Tensor with data of its own")
    return cast(T, data)


_as_subclass = torch._C._TensorBase.as_subclass
"""Bound here: a submission may replace it."""


def tensor(value: object, what: str, shape: Sequence[int] | None = None) -> Tensor:
    """`value`, which a docstring promises to be a tensor, of this shape if one is named.

    Raises:
        WrongReturn: it is no tensor, or has another shape.
    """
    returned = instance(value, Tensor, what)
    if shape is not None and tuple(returned.shape) != tuple(shape):
        raise WrongReturn(
            f"{what} returned a tensor of shape {tuple(returned.shape)}; its shape must be {tuple(shape)}"
        )
    return returned


def made(kind: StudentObject, what: str, *arguments: object, **options: object) -> StudentObject:
    """The object that a class of the submission makes of these arguments.

    Raises:
        WrongReturn: it is no object of that class, because something else has its name.
    """
    value = kind(*arguments, **options)
    if isinstance(kind, type) and not isinstance(value, kind):
        raise WrongReturn(f"{what} made {described(value)}, expected an object of the class {kind.__name__}")
    if not isinstance(kind, type) and type(value).__module__ == "builtins":
        raise WrongReturn(f"{what} returned {described(value)}; {what.partition('(')[0]} must be a class")
    return value


def mapping(value: object, what: str) -> dict[StudentObject, StudentObject]:
    """A returned dictionary.

    Raises:
        WrongReturn: for anything else.
    """
    if not isinstance(value, Mapping):
        raise WrongReturn(f"{what} returned {described(value)}; return a dict")
    return dict(value)


def finite_or_text(value: object, what: str) -> float | str:
    """A promised number; one that is not finite as text.

    Raises:
        WrongReturn: it is no number.
    """
    number = plain(value, what)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise WrongReturn(f"{what} is {described(value)}, expected a number")
    return float(number) if math.isfinite(number) else str(float(number))


def sequence(value: object, what: str) -> list[StudentObject]:
    """A returned list or tuple.

    Raises:
        WrongReturn: for anything else.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise WrongReturn(f"{what} returned {described(value)}; return a list")
    return list(value)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def described(value: object) -> str:
    """A value for a message: its type, and its beginning."""
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception:  # its class may be the submission's
        return f"an object of the class {type(value).__name__}"
    return f"{type(value).__name__} ({text if len(text) <= 60 else text[:57] + '...'})"


def run_program(student: Student, module: str, arguments: Sequence[str], out: Path) -> dict[str, Json]:
    """Run a lab program in-process with `--out`, and describe the files it wrote.

    Returns:
        `exit_code`, `drawn` (see `watch_figures`), `json` and `pictures` (see `describe_files`).
    """
    program = student.module(module)
    with watch_figures() as drawn:
        try:
            code = program.main([*arguments, "--out", str(out)])
        except SystemExit as stop:  # argparse's way of refusing arguments, and some students' way of ending
            code = stop.code
    return {"exit_code": plain(code, f"{module}.main()"), **describe_files(out), "drawn": drawn}


def watch_figures() -> AbstractContextManager[list[int]]:
    """Yield a list that gets, for each figure that matplotlib writes as PNG, how many points of data it shows."""
    return watch_png(lambda figure: sum(_points(axes) for axes in figure.axes))


def _points(axes: Axes) -> int:
    """Points, bars and pixels at places of the data; neither texts nor what spans the axes wherever they are."""
    from matplotlib import collections as groups
    from matplotlib import image, lines, patches

    line: MatplotlibClass = lines.Line2D
    group: MatplotlibClass = groups.Collection

    def by_data(transform: Transform) -> bool:
        return bool(transform.contains_branch(axes.transData))

    count = 0
    for artist in seen(axes):
        if isinstance(artist, line) and by_data(artist.get_transform()):
            count += int(np.isfinite(artist.get_xydata()).all(axis=1).sum())
        elif isinstance(artist, patches.Patch) and by_data(artist.get_transform()):
            count += 1
        elif isinstance(artist, group):
            if by_data(artist.get_offset_transform()):
                count += len(artist.get_offsets())
            elif by_data(artist.get_transform()):
                count += sum(len(path.vertices) for path in artist.get_paths())
        elif isinstance(artist, image.AxesImage):
            count += math.prod(artist.get_size())
    return count


def describe_files(out: Path) -> dict[str, Json]:
    """What lies below a folder: `json` ({name: text}) and `pictures` (see `_picture`, by name)."""
    files = {name.rpartition("/")[2]: out / name for name in files_below(out)}
    return {
        "json": {name: read_bytes(path).decode() for name, path in files.items() if name.endswith(".json")},
        "pictures": {name: _picture(path) for name, path in files.items() if name.endswith(".png")},
    }


def _picture(path: Path) -> Picture:
    """Size and number of colours of a picture, and the share of its commonest: a blank one has one, noise has none."""
    from PIL import Image

    with Image.open(path) as image:
        width, height = image.size
        rows = np.asarray(image.convert("RGBA"))[:: max(1, height // 200)]
    # To two digits of a colour's range, and its four channels as one number.
    sample = np.rint(rows * np.float32(100 / 255)).astype(np.uint8).view(np.uint32)
    colours, counts = np.unique(sample, return_counts=True)
    return {"width": width, "height": height, "colours": len(colours), "ground": float(counts.max() / sample.size)}
