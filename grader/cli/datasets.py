"""`gpulabs data`: the data sets of the labs, on this machine."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from gradebook.cli.echo import echo
from gradebox.common.command_line import CommandApp

data_app = CommandApp(no_args_is_help=True, help="Get the data sets of the labs.")

STOPPED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT


@data_app.callback()
def _data() -> None:
    """Get the data sets of the labs."""


@data_app.command("download")
def download_dataset(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The data folder (default: GPULABS_DATA, else data/).", show_default=False),
    ] = None,
) -> None:
    """Download a data set with torchvision, check it, and put it where the labs find it.

    A data set that is already there is only checked. If you stop the download, nothing is left of it: start it again.
    Exit codes: 0 the data set is there, 1 it could not be downloaded, 2 no such data set, 130 or 143 stopped.
    """
    from labkit import data

    if name not in data.SOURCES:
        with_files = ", ".join(data.SOURCES)
        reason = "digits are part of scikit-learn" if name == "digits" else f"there is no data set {name!r}"
        echo(f"error: {reason}; these can be downloaded: {with_files}", err=True)
        raise typer.Exit(2)
    # The scratch folder is removed as after Ctrl-C: Slurm and Kubernetes end a job with this signal.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    try:
        folder = data.download(name, to)
    except data.DatasetError as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        echo("interrupted: nothing was kept; the same command starts the download again", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    echo(f"{name} is complete in {folder}")
    echo(f"use it with --data {name} --data-dir {data.folder_of(to)}")
