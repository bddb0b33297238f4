"""`gpulabs manual grade`: serves the page in which people grade."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gradebook import command_name
from gradebook.grading.manual_grading import FOLDER, grader_name
from gradebook.plugins import Host


def command(host: Host) -> Callable[..., None]:
    """`gpulabs manual grade`."""

    def grade_by_hand(
        folder: Annotated[
            Path, typer.Argument(help="The folder of the class (--out of the command class).", show_default=False)
        ],
        as_: Annotated[
            str | None, typer.Option("--as", metavar="NAME", help="Who grades (default: your login).")
        ] = None,
        port: Annotated[
            int | None, typer.Option(min=1, max=65535, help="Where to listen (default: one of your own).")
        ] = None,
    ) -> None:
        """Serve the page in which you grade, on this machine only, until Ctrl-C.

        Every grader starts one, on the same folder: nobody's marks are written over. A mark is on disk at once.
        """
        from gradebook.plugins.grading_ui.board import Board
        from gradebook.plugins.grading_ui.server import listen, port_of

        try:
            board = Board(folder, grader_name(as_))
            server, address = listen(board, port)
        except (ValueError, OSError) as error:
            raise host.fail(error) from None
        host.echo(f"grading as {board.grader}; open this link, which is for you only:\n\n  {address}\n")
        if port is None and server.port != port_of(folder, board.grader):
            host.echo(
                "note: your usual port is taken, perhaps by a page of yours; what a browser kept is found there only"
            )
        tunnel = f"ssh -L {server.port}:127.0.0.1:{server.port} HOST"
        host.echo(f"Ctrl-C ends it. From another machine: {tunnel}, then the same link.")
        server.serve_forever()
        board.open("")
        host.echo(
            f"ended; what was given is in {folder / FOLDER}. {command_name.command()} export class "
            f"{shlex.quote(str(folder))} writes the exports again"
        )

    return grade_by_hand
