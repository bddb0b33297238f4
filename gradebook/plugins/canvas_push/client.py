"""Requests to Canvas's REST API: the token, pages, throttling, and each failure as one line that says what to do.

By requests. The library canvasapi (3.6, well kept) would save the paging, but sets no time limit on a request and
raises where Canvas asks to go slower; both would have to be fixed in its private session. Our tests use it from the
other side: it has to get along with the Canvas that they start.
Sources: Canvas's documentation of OAuth (header), pagination and throttling; what it sends when it throttles is in its
`RequestThrottle` (403, "Rate Limit Exceeded"); services in front of it send 429. Not for what the answers mean.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

Fields = Sequence[tuple[str, str]]

_SECONDS = (15.0, 120.0)
"""To get a connection, and to wait for more of an answer."""
_PATIENCE_SECONDS = 900.0
"""All waits for one answer together."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 2.0, 60.0
_NOWHERE = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)
"""A connection that fails so before anything was ever answered is an address that is wrong, not a Canvas at rest."""
_PASSES = (500, 502, 503, 504)
_THROTTLED = "Rate Limit Exceeded"
_PER_PAGE = 100
"""The most that Canvas gives by default; it may give fewer."""
_MAX_PAGES = 1000


class PushError(ValueError):
    """Canvas cannot be used so; the message is one line that says what to do."""


class NotThere(PushError):
    """Canvas knows nothing of this name, or shows it to nobody with this token."""


class _Bearer(AuthBase):
    """The token, in the header and nowhere else; so no `.netrc` can take its place."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Client:
    """One Canvas, as one user. One request at a time, which Canvas hardly ever throttles."""

    def __init__(
        self,
        url: str,
        token: str,
        say: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        given: str = "",
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: such as `https://canvas.example.edu`.
            token: an access token of a person who may grade in the course.
            say: takes a line about why it is waiting.
            sleep: waits.
            given: where somebody wrote the address, such as an option or a file, for messages.

        Raises:
            PushError: this is no address of a Canvas, or would carry the token where others can read it.
        """
        origin = given and f" ({given})"
        try:
            parts = urlsplit(url if "://" in url else f"https://{url}")
            is_one = bool(parts.hostname) and not parts.username and parts.scheme in ("https", "http")
            _ = parts.port
        except ValueError:  # such as a port that is no number
            is_one = False
        if not is_one or parts.netloc.endswith(":") or any(sign.isspace() for sign in url):
            raise PushError(f"{url!r}{origin} is no address of a Canvas; write it like https://canvas.example.edu")
        if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise PushError(
                f"{url}{origin}: over http anybody on the way could read the token; write https://{parts.netloc}"
            )
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._given = origin
        self._has_answered = False
        self._say, self._sleep = say, sleep
        self._session = requests.Session()
        self._session.auth = _Bearer(token)
        self._session.headers.update({"Accept": "application/json", "User-Agent": "gpu-computing-labs"})

    def get(self, path: str, fields: Fields = ()) -> Any:
        """One object. `path` is what follows `/api/v1/`. Raises `PushError`."""
        return self._json(self._asked("GET", self._url(path), fields))

    def pages(self, path: str, fields: Fields = ()) -> Iterator[Any]:
        """Every object of a list, however many pages it has. Raises `PushError`."""
        url, fields = self._url(path), (*fields, ("per_page", str(_PER_PAGE)))
        for _ in range(_MAX_PAGES):
            answer = self._asked("GET", url, fields)
            page = self._json(answer)
            if not isinstance(page, list):
                raise PushError(f"{self.origin} does not answer as Canvas does: {path} is no list")
            yield from page
            following = answer.links.get("next", {}).get("url")
            if following is None:
                return
            if not following.startswith(f"{self.origin}/"):
                raise PushError(
                    f"{self.origin} says that its next page is at {following.split('?')[0]}; the token does not go "
                    "there: name that address with --url, if it is your Canvas"
                )
            url, fields = following, ()  # as it is: what it looks like is Canvas's own business
        raise PushError(f"{self.origin} has no end of pages for {path}")

    def post(self, path: str, fields: Fields) -> Any:
        """Have something done, once. Raises `PushError`; then it may have been done."""
        return self._json(self._asked("POST", self._url(path), fields))

    def _url(self, path: str) -> str:
        return f"{self.origin}/api/v1/{path}"

    def _asked(self, method: str, url: str, fields: Fields) -> requests.Response:
        """The answer, when it is one that can be used."""
        waited, wait = 0.0, _FIRST_WAIT_SECONDS
        while True:
            answer, problem = self._tried(method, url, fields)
            if answer is not None and not problem:
                return answer
            seconds = min(max(wait, _asked_to_wait(answer)), _LONGEST_WAIT_SECONDS)
            if waited + seconds > _PATIENCE_SECONDS:
                raise PushError(f"{self.origin} {problem}, for {waited / 60:.0f} minutes; give the same command later")
            self._say(
                f"{self.origin} {problem}; asking again in {seconds:.0f} s, and giving up after "
                f"{_PATIENCE_SECONDS / 60:.0f} minutes of waiting"
            )
            self._sleep(seconds)
            waited, wait = waited + seconds, wait * 2

    def _tried(self, method: str, url: str, fields: Fields) -> tuple[requests.Response | None, str]:
        """The answer, and why it is worth asking again, if it is. Raises `PushError` where it is not."""
        data: Mapping[str, Any] = {"params": fields} if method == "GET" else {"data": fields}
        try:
            answer = self._session.request(method, url, timeout=_SECONDS, allow_redirects=False, **data)
        except requests.exceptions.SSLError as error:
            inner = _innermost(error)
            what = "cannot show that it is what it says (its certificate)"
            if not isinstance(inner, ssl.SSLCertVerificationError):
                what = "does not speak https as it should"
            raise PushError(f"{self.origin}{self._given} {what}: {inner}") from None
        except (requests.ConnectionError, requests.Timeout) as error:
            cause, is_nowhere = _cause(error, urlsplit(url).hostname or "")
            if is_nowhere and not self._has_answered:
                raise PushError(
                    f"{self.origin}{self._given} cannot be reached: {cause}; look whether this is your Canvas's address"
                ) from None
            if method == "GET":
                return None, f"does not answer ({cause})"
            raise PushError(f"{cause}: the way to {self.origin} broke off while grades were sent; {_AGAIN}") from None
        except (requests.RequestException, ValueError) as error:  # such as an empty part in the host's name
            raise PushError(f"{self.origin}{self._given} cannot be reached: {error}; correct the address") from None
        self._has_answered = True
        if answer.status_code == 429 or (answer.status_code == 403 and _THROTTLED in answer.text):
            return answer, "asks to go slower"
        if answer.status_code in _PASSES:
            if method == "GET":
                return answer, f"has trouble of its own (status {answer.status_code})"
            raise PushError(f"{self.origin} had trouble (status {answer.status_code}) as grades were sent; {_AGAIN}")
        self._check(answer)
        return answer, ""

    def _check(self, answer: requests.Response) -> None:
        """Raise `PushError` for every answer that is a refusal."""
        status, path = answer.status_code, urlsplit(answer.url).path
        if status < 300:
            return
        if status < 400:
            elsewhere = answer.headers.get("Location", "elsewhere").split("?")[0]
            raise PushError(f"{self.origin} sends on to {elsewhere}; name your Canvas's own address with --url")
        if status == 401 and "WWW-Authenticate" in answer.headers:
            raise PushError("Canvas does not know the token, or it has expired; make a new one in Account, Settings")
        if status in (401, 403):
            raise PushError(f"Canvas does not let the owner of this token do that ({path}){_words(answer)}")
        if status == 404:
            raise NotThere(f"Canvas has nothing at {path}, or shows it to nobody with this token")
        raise PushError(f"Canvas refuses {path} with status {status}{_words(answer)}")

    def _json(self, answer: requests.Response) -> Any:
        try:
            return answer.json(parse_float=Decimal)
        except ValueError:
            raise PushError(f"{self.origin} does not answer as Canvas does; is this its address?") from None


_AGAIN = "give the same command again: it looks first what has arrived"


def _cause(error: BaseException, host: str) -> tuple[str, bool]:
    """Why there was no connection, in a few words, and whether that is because nothing is at this address."""
    if isinstance(error, requests.exceptions.ProxyError):
        return f"the proxy does not let it through: {_innermost(error)}", True
    inner = _innermost(error)
    if isinstance(inner, socket.gaierror):
        return f"no host is found by the name {host!r} ({inner.strerror})", True
    if isinstance(inner, ConnectionRefusedError):
        return "nothing listens there", True
    if isinstance(error, requests.ConnectTimeout):
        return f"no connection within {_SECONDS[0]:.0f} s", False
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror, inner.errno in _NOWHERE
    if isinstance(error, requests.Timeout) or isinstance(inner, TimeoutError):
        return f"nothing came within {_SECONDS[1]:.0f} s", False
    return "the connection broke off", False


def _innermost(error: BaseException) -> BaseException:
    """The error of the system that is behind those of the libraries."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def _asked_to_wait(answer: requests.Response | None) -> float:
    """Seconds that the answer asks for; 0 where it says nothing, or a date."""
    text = answer.headers.get("Retry-After", "") if answer is not None else ""
    return float(text) if text.isdecimal() else 0.0


def _words(answer: requests.Response) -> str:
    """What Canvas says about a refusal, in one line; nothing where it says nothing."""
    try:
        reply = answer.json()
    except ValueError:
        return ""
    if not isinstance(reply, dict):
        return ""
    errors = reply.get("errors") or reply.get("error") or reply.get("message") or ""
    if isinstance(errors, list):
        errors = "; ".join(
            str(error.get("message", error)) if isinstance(error, dict) else str(error) for error in errors
        )
    return f": {' '.join(str(errors).split())[:200]}" if errors else ""
