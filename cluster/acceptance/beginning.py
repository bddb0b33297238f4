"""What has to happen before anything heavy is imported, PyTorch first of all, which takes seconds.

A process is bound to the one that started it, and an older report is removed: whoever is killed while it imports leaves
neither an orphan nor yesterday's PASS.
"""

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

JSON_NAME, PAGE_NAME = "cluster_test_report.json", "cluster_test_report.html"
DEFAULT_FOLDER = Path("reports")
PR_SET_PDEATHSIG = 1
"""prctl(2), Linux only."""


def bind_to_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when the one that started it ends; leave at once if it has ended.

    Args:
        number: the signal.
        parent: process id of the one that started it; None where it did not say.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def begin(argv: Sequence[str]) -> None:
    """The beginning of `python -m cluster.acceptance`, alone or started by torchrun."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Its handler (`launch`) ends the workers and writes the report; before that there are none.
        bind_to_parent(signal.SIGTERM)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0  # the first try's report holds
    if int(os.environ.get("LOCAL_RANK", 0)) == 0 and not restarted and not {"-h", "--help"} & set(argv):
        folder = report_folder(argv)
        baseline = _value_of("--baseline", argv, None)
        if baseline is not None and baseline.resolve() == (folder / JSON_NAME).resolve():
            print(f"could not run: --baseline {baseline} is where the report goes: copy it elsewhere", file=sys.stderr)
            raise SystemExit(2)
        try:
            remove_reports(folder)
        except OSError as error:
            print(f"could not remove an older report: {error}", file=sys.stderr)


def report_folder(argv: Sequence[str]) -> Path:
    """The folder of `--report`, whatever else is wrong with the command line."""
    return _value_of("--report", argv, DEFAULT_FOLDER) or DEFAULT_FOLDER


def _value_of(option: str, argv: Sequence[str], default: Path | None) -> Path | None:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument(option, type=Path, default=default, dest="value")
    try:
        value: Path | None = parser.parse_known_args(list(argv))[0].value
    except argparse.ArgumentError:  # the option without a value; the real parser says so
        return default
    return value


def remove_reports(folder: Path) -> None:
    """Remove the reports of an earlier run: they must never be taken for this one's.

    Raises:
        OSError: there is one, and it cannot be removed.
    """
    for name in (JSON_NAME, PAGE_NAME):
        try:
            (folder / name).unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
