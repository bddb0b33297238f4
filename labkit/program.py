"""What the lab programs have in common on the command line: options, tables, honest endings.

Not for the labs' own work: a program here means `main(argv) -> int` in a lab module, run by `python -m`.
"""

import argparse
import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit import LabError


class _ShowsDefaults(argparse.ArgumentDefaultsHelpFormatter):
    """Names the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        if isinstance(action.default, tuple):
            return f"{action.help} (default: {','.join(map(str, action.default))})"
        return super()._get_help_string(action)


def make_parser(description: str, *, results: Path) -> argparse.ArgumentParser:
    """A parser with the two options every lab program has.

    Args:
        description: the module's docstring; its first line is shown by `--help`.
        results: the default of `--out`.

    Returns:
        A parser that shows defaults, and whose result has `device: str` and `out: Path`.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0], formatter_class=_ShowsDefaults)
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (CUDA, else the virtual GPU), cpu, cuda, vgpu or vgpu:MODEL",
    )
    parser.add_argument("--out", type=Path, default=results, metavar="DIR", help="results folder")
    return parser


def positive_int(text: str) -> int:
    """Argument type: a whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def positive_ints(text: str) -> tuple[int, ...]:
    """Argument type: whole numbers from 1 on, separated by commas."""
    return tuple(positive_int(part.strip()) for part in text.split(","))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: the first column to the left, the others to the right."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # Text: brackets in a name are not markup
    Console().print(table)


def print_written(*paths: Path) -> None:
    """Say which files a program wrote, one to a line, never folded."""
    for path in paths:
        print(f"wrote {path}")


def run(main: Callable[[], int]) -> int:
    """Run a program as a whole and turn its expected endings into one line and an exit code.

    Returns:
        What `main` returned; 1 for an error a student can put right (`LabError`, a file that cannot be written) and
        for a task that is still open; 130 after Ctrl-C, as shells have it. Other exceptions are bugs and pass through.
        Under torchrun it does not return but ends the process, see `end_process`.
    """
    code = _run(main)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_process(code)
    return code


def end_process(code: int) -> NoReturn:
    """End a process that was a rank: its threads finish, what is registered for the end happens, then it is gone.

    An ordinary end takes the interpreter down while Gloo's threads still run (destroy_process_group leaves them, with
    the last collective's tensors), and on a busy machine one of them then aborts the process (SIGABRT) whose work was
    done.

    Source: https://github.com/pytorch/pytorch/pull/179291
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for all but daemons, as multiprocessing does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run(main: Callable[[], int]) -> int:
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted: files already listed as written are complete, no other was changed", file=sys.stderr)
        return 130
    except (LabError, NotImplementedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
