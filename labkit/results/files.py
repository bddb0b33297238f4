"""How results are kept in JSON, with where they come from.

Not for the results of one lab (`labkit.results.lab1` and its neighbours), and no PyTorch here.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from labkit import LabError
from labkit.decode import DecodeError, decode
from labkit.files import atomic_write

SCHEMA = 1
"""Version of the file layout; a file with another one is refused."""


class ResultsError(LabError):
    """A results file is missing, damaged, or holds another kind of results than expected."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where numbers come from. Peak figures are those of the data sheet, None where they are not known."""

    device: str
    """"cuda" or "cpu"."""
    device_name: str
    simulated: bool
    torch: str
    python: str
    peak_tflops: dict[str, float] | None
    """By dtype, for example {"float32": 8.1}."""
    bandwidth_bytes_per_second: float | None
    """Of the device's own memory."""
    launch_seconds: float | None
    """Host time of putting one kernel into the queue."""


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Saved(Generic[T]):
    """The content of a results file."""

    provenance: Provenance
    results: tuple[T, ...]


def save_json(path: Path | str, results: Sequence[Any], provenance: Provenance) -> Path:
    """Write results of one kind with their provenance; the file is replaced as a whole or left alone.

    Args:
        path: the file to write; missing folders are made.
        results: one or more dataclasses of `labkit.results`, all of the same class.
        provenance: where they were measured (`labkit.device.Device.provenance()`).

    Returns:
        `path`.

    Raises:
        ValueError: no results, several kinds of them, or a number that is infinite or not a number.
        OSError: the file cannot be written.
    """
    path = Path(path)
    kinds = {type(result).__name__ for result in results}
    if len(kinds) != 1:
        raise ValueError(f"a results file holds results of exactly one kind; found {sorted(kinds) or 'none'}")
    document = {
        "schema": SCHEMA,
        "kind": kinds.pop(),
        "provenance": asdict(provenance),
        "results": [asdict(result) for result in results],
    }
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def load_json(path: Path | str, kind: type[T]) -> Saved[T]:
    """Read what `save_json` wrote.

    Args:
        path: the file.
        kind: the class of the results it should hold, for example `Comparison`.

    Raises:
        ResultsError: the file is missing, damaged, of another schema, or holds another kind; the message names the
            file, the place in it and what to do.
    """
    path = Path(path)
    again = "Run the program that writes it again."
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ResultsError(f"{path} does not exist. {again}") from None
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultsError(f"{path} is not valid JSON ({error}). {again}") from error
    if problem := _problem(document, kind.__name__):
        raise ResultsError(f"{path}: {problem}. {again}")
    try:
        provenance = decode(Provenance, document["provenance"], "provenance")
        results = decode(tuple[kind, ...], document["results"], "results")  # type: ignore[valid-type]
    except DecodeError as error:
        raise ResultsError(f"{path}: {error}. {again}") from error
    return Saved(provenance=provenance, results=results)


def _problem(document: Any, kind: str) -> str | None:
    if not isinstance(document, dict):
        return "expected an object with schema, kind, provenance and results"
    missing = [key for key in ("schema", "kind", "provenance", "results") if key not in document]
    if missing:
        return f"{', '.join(missing)} missing"
    if document["schema"] != SCHEMA:
        return f"its schema is {document['schema']!r}, this labkit reads {SCHEMA}"
    if document["kind"] != kind:
        return f"it holds {document['kind']!r}, and {kind!r} was expected"
    return None
