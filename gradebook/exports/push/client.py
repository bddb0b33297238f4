"""Requests to Canvas's REST API: the token, pages, throttling, and each failure as one line that says what to do.

By requests. The library canvasapi (3.6, well kept) would save the paging, but sets no time limit on a request and
raises where Canvas asks to go slower; both would have to be mended in its private session. Our tests use it from the
other side: it has to get along with the Canvas that they start.
Sources: Canvas's documentation of OAuth (header), pagination and throttling; what it sends when it throttles is in its
`RequestThrottle` (403, "Rate Limit Exceeded"); services in front of it send 429. Not for what the answers mean.
"""

from __future__ import annotations

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
        self, url: str, token: str, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: such as `https://canvas.example.edu`.
            token: an access token of whoever may grade in the course.
            say: takes a line about why it is waiting.
            sleep: waits.

        Raises:
            PushError: this is no address of a Canvas, or would carry the token where others can read it.
        """
        parts = urlsplit(url if "://" in url else f"https://{url}")
        if not parts.hostname or parts.username or parts.scheme not in ("https", "http"):
            raise PushError(f"{url!r} is no address of a Canvas; write it like https://canvas.example.edu")
        if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise PushError(f"{url}: over http anybody on the way could read the token; write https://{parts.netloc}")
        self.origin = f"{parts.scheme}://{parts.netloc}"
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
            found = self._json(answer)
            if not isinstance(found, list):
                raise PushError(f"{self.origin} does not answer as Canvas does: {path} is no list")
            yield from found
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
            self._say(f"Canvas {problem}; asking again in {seconds:.0f} s")
            self._sleep(seconds)
            waited, wait = waited + seconds, wait * 2

    def _tried(self, method: str, url: str, fields: Fields) -> tuple[requests.Response | None, str]:
        """The answer, and why it is worth asking again, if it is. Raises `PushError` where it is not."""
        data: Mapping[str, Any] = {"params": fields} if method == "GET" else {"data": fields}
        try:
            answer = self._session.request(method, url, timeout=_SECONDS, allow_redirects=False, **data)
        except (requests.ConnectionError, requests.Timeout) as error:
            if isinstance(error, requests.exceptions.SSLError):
                raise PushError(
                    f"{self.origin} cannot show that it is what it says (its certificate): {error}"
                ) from None
            if method == "GET":
                return None, "does not answer"
            raise PushError(f"the way to {self.origin} broke off while grades were sent; {_AGAIN}") from None
        except requests.RequestException as error:
            raise PushError(f"{self.origin} cannot be asked: {error}") from None
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


def _asked_to_wait(answer: requests.Response | None) -> float:
    """Seconds that the answer asks for; 0 where it says nothing, or a date."""
    text = answer.headers.get("Retry-After", "") if answer is not None else ""
    return float(text) if text.isdecimal() else 0.0


def _words(answer: requests.Response) -> str:
    """What Canvas says about a refusal, in one line; nothing where it says nothing."""
    try:
        found = answer.json()
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    errors = found.get("errors") or found.get("error") or found.get("message") or ""
    if isinstance(errors, list):
        errors = "; ".join(str(one.get("message", one)) if isinstance(one, dict) else str(one) for one in errors)
    return f": {' '.join(str(errors).split())[:200]}" if errors else ""
