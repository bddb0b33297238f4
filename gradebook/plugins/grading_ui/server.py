"""The page over HTTP, for one person on this machine.

The server listens on the loopback interface only. Every address begins with a secret that is drawn when it starts;
without it there is no answer. Requests under another host's name (DNS rebinding) or from another page (Origin) are
refused, and the page may load nothing but what this server gives (Content-Security-Policy).
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import zlib
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradebook.grading.manual_grading import ManualGradingError
from gradebook.grading.manual_grading.marks import ChangedMeanwhileError
from gradebook.plugins.grading_ui.board import Board, NotThereError

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer
    from werkzeug.wrappers import Request, Response

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_STATIC = {
    "page.js": "text/javascript",
    "code.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_MAX_BODY_BYTES = 256 * 1024
_FIRST_PORT, _PORTS = 47_000, 1000
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
StartResponse = Callable[..., Any]


class App:
    """The page as a WSGI application."""

    def __init__(self, board: Board, token: str) -> None:
        from werkzeug.routing import Map, Rule

        self._board = board
        self._token = token
        self._routes = Map(
            [
                Rule("/<token>/", endpoint="page", methods=["GET"]),
                Rule(
                    "/<token>/<any('page.js','code.js','page.css','icon.svg'):name>", endpoint="static", methods=["GET"]
                ),
                Rule("/<token>/class", endpoint="overview", methods=["GET"]),
                Rule("/<token>/open/<name>", endpoint="open", methods=["POST"]),
                Rule("/<token>/unit/<name>", endpoint="unit", methods=["GET"]),
                Rule("/<token>/unit/<name>/picture/<int:number>", endpoint="picture", methods=["GET"]),
                Rule("/<token>/unit/<name>/mark/<criterion>", endpoint="give", methods=["PUT"]),
                Rule("/<token>/unit/<name>/code", endpoint="code", methods=["GET"]),
                Rule("/<token>/unit/<name>/line", endpoint="say", methods=["POST"]),
                Rule("/<token>/unit/<name>/line/<comment>", endpoint="say_again", methods=["PUT"]),
                Rule("/<token>/similarity", endpoint="similarity", methods=["GET"]),
                Rule("/<token>/unit/<name>/undo", endpoint="undo", methods=["POST"]),
                Rule("/<token>/unit/<name>/keep", endpoint="keep", methods=["POST"]),
                Rule("/<token>/comment", endpoint="add_comment", methods=["POST"]),
                Rule("/<token>/comment/<name>", endpoint="change_comment", methods=["PUT"]),
                Rule("/<token>/comment/<name>", endpoint="remove_comment", methods=["DELETE"]),
                Rule("/<token>/request/<name>", endpoint="answer", methods=["PUT"]),
            ],
            strict_slashes=False,
            redirect_defaults=False,
        )

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        from werkzeug.wrappers import Request

        request = Request(environ)
        request.max_content_length = _MAX_BODY_BYTES
        response = self._respond(request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Content-Security-Policy", _POLICY)
        return response(environ, start_response)

    def _respond(self, request: Request) -> Response:
        from werkzeug.exceptions import HTTPException

        try:
            if (refused := _refused(request)) is not None:
                return _json({"error": refused}, 403)
            endpoint, values_of_route = self._routes.bind_to_environ(request.environ).match()
            values = dict(values_of_route)
            if not hmac.compare_digest(str(values.pop("token")).encode(), self._token.encode()):
                return _json({"error": "open the link that the command printed: each start has its own"}, 403)
            return self._answer(request, str(endpoint), values)
        except HTTPException as error:
            return _json({"error": error.name}, error.code or 500)

    def _answer(self, request: Request, endpoint: str, values: dict[str, Any]) -> Response:
        from werkzeug.wrappers import Response

        board = self._board
        try:
            if endpoint in ("page", "static"):
                name = values.get("name", "page.html")
                text = Path(__file__).with_name(name).read_text(encoding="utf-8")
                return Response(text, content_type=f"{_STATIC.get(name, 'text/html')}; charset=utf-8")
            if endpoint == "picture":
                picture = board.picture(**values)
                response = Response(picture.path.read_bytes(), content_type=picture.kind)
                response.headers["Content-Security-Policy"] = _PICTURE_POLICY
                return response
            if endpoint == "similarity":
                response = Response(board.similarity().read_bytes(), content_type="text/html; charset=utf-8")
                response.headers["Content-Security-Policy"] = _PICTURE_POLICY
                return response
            if endpoint in ("give", "say", "say_again", "add_comment", "change_comment", "answer"):
                values["body"] = _body(request)
            return _json(getattr(board, endpoint)(**values), 200)
        except ChangedMeanwhileError as error:
            now = board.now(values["name"], values["criterion"]) if endpoint == "give" else None
            return _json({"error": str(error), "now": now}, 409)
        except NotThereError as error:
            return _json({"error": str(error)}, 404)
        except ValueError as error:  # ManualGradingError, and that of a gradebook that is being written again
            return _json({"error": str(error)}, 400)
        except OSError as error:
            return _json({"error": f"{board.folder} cannot be read or written: {error.strerror}"}, 507)


def _refused(request: Request) -> str | None:
    """Why a request is none of our page's; None where it is."""
    name = request.host.rpartition(":")[0] or request.host
    if name not in _NAMES:
        return "this server answers to 127.0.0.1 and localhost only"
    if request.method in ("GET", "HEAD"):
        return None
    if request.headers.get("Origin") != f"http://{request.host}":
        return "the request comes from another page"
    return None


def _body(request: Request) -> dict[str, Any]:
    """What was sent. Raises `ManualGradingError` where it is no JSON table."""
    if request.mimetype != "application/json":
        raise ManualGradingError("expected application/json")
    try:
        content = json.loads(request.get_data(cache=False), parse_float=Decimal)
    except ValueError:
        raise ManualGradingError("what was sent is no JSON") from None
    if not isinstance(content, dict):
        raise ManualGradingError("what was sent is no table")
    return content


def _json(value: Any, status: int) -> Response:
    from werkzeug.wrappers import Response

    return Response(json.dumps(value, ensure_ascii=False), status, content_type="application/json; charset=utf-8")


def port_of(folder: Path, grader: str) -> int:
    """The same for one grader of one class every time, so that the browser finds again what it kept."""
    return _FIRST_PORT + zlib.crc32(f"{folder.resolve()}\n{grader}".encode("utf-8", "replace")) % _PORTS


def listen(board: Board, port: int | None) -> tuple[BaseWSGIServer, str]:
    """A server that listens already, and the address of its page; `serve_forever()` answers.

    Args:
        board: what it shows.
        port: where to; None for the grader's own port, or any other one where that is taken.

    Raises:
        ManualGradingError: the port is taken.
    """
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        """Keeps no log: every address has the secret in it."""

        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    token = secrets.token_urlsafe(24)
    app = App(board, token)
    try:
        bound = _bound(port_of(board.folder, board.grader) if port is None else port)
    except (OSError, OverflowError):
        if port is not None:
            raise ManualGradingError(f"--port {port} is taken, or no port; leave it out, or name another one") from None
        bound = _bound(0)
    with bound:  # the server has a copy
        server = make_server(HOST, 0, app, threaded=True, request_handler=Handler, fd=bound.fileno())
    return server, f"http://{HOST}:{server.port}/{token}/"


def _bound(port: int) -> socket.socket:
    """A socket that listens there: werkzeug would end the program where a port is taken. Raises `OSError`."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener
