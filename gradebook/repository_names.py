"""What the name of a repository says: its address has it at the end, and it ends with its owner's login.

Not for whose login that is (`roster.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_BRANCH = re.compile(r"-(main|master|[0-9a-f]{7}|[0-9a-f]{40})$")
"""What GitHub's Download ZIP writes behind the name: a branch, or a commit."""


def repository_name(address: str) -> str:
    """The name of a repository, which a login may end: that of its address."""
    return re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git")


def parts(name: str, logins: Iterable[str]) -> tuple[str, str]:
    """What is before the login at the end of a name, and the login: of two that fit, the longer one; else empty."""
    plain = _BRANCH.sub("", name)
    branch = name[len(plain) + 1 :]
    fitting = [
        (form[: -len(login)], login)
        for login in logins
        for form in dict.fromkeys((name, plain))
        if form.endswith(f"-{login}")
    ]
    # Somebody may be called main: in `lab1-ada-main` that is the branch, if Ada is in the class.
    return max(fitting, key=lambda pair: (pair[1] != branch, len(pair[1])), default=("", ""))
