"""Replies are kept whole, found again by what decides them, and only those that another run would get as well."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradebox.sandbox import DESCENDANTS, Isolation, Limits, Note, RankReply, Reply, Request, Sandbox
from tests.scenarios import asking, ours
from tests.scenarios.asking import Asking, Turn
from tests.scenarios.build import SCENARIOS, load
from tests.scenarios.reuse import code_of
from tests.scenarios.store import Store, decode, encode

REPLY = Reply(
    "error",
    (
        RankReply(
            "ok",
            value={"loss": [1.5, float("nan"), None], "$odd": "ü\n"},
            tensors={"a/b": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 4), dtype=np.int64)},
            dtypes={"a/b": "bfloat16"},
            stdout="x",
        ),
        RankReply("error", error="ValueError", message="no", where="a.py:3 in f", line="f()", cpu_seconds=2.0),
    ),
    1.25,
    (Note("file", "opened", None), Note("import", "that", "a.py:1")),
)
OK = Reply("ok", (RankReply("ok", value=1),), 0.1)
PROBE = Request("lab2.scaling.train")
OTHER = Request("lab2.comparison.measuring.conclude")


def same(reply: Reply, other: Reply) -> bool:
    """Whether two replies say the same; not a number is the same as itself."""
    return encode(reply) == encode(other)


def test_a_reply_is_kept_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("abc", REPLY)
    kept = store.get("abc")
    assert kept is not None
    assert same(kept, REPLY)
    assert kept.ranks[0].tensors["a/b"].dtype == np.float32
    assert kept.seconds == REPLY.seconds
    assert not same(kept, replace(REPLY, notes=()))
    assert b"pickle" not in encode(REPLY)


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_damaged_entry_is_not_there(cut: int, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("abc", REPLY)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes()[:cut])
    assert store.get("abc") is None
    assert not file.exists()


def test_bytes_that_are_no_reply_are_refused() -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        decode(encode(REPLY).replace(b'"error"', b'"hello"'))


def test_two_workers_write_the_same_entry(tmp_path: Path) -> None:
    def write() -> None:
        for _ in range(50):
            Store(tmp_path).put("abc", REPLY)
            replies.append(Store(tmp_path).get("abc"))

    replies: list[Reply | None] = []
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 100
    assert all(reply is not None and same(reply, REPLY) for reply in replies)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["c"]


def test_what_a_failing_test_asked_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("before", REPLY)
    store.begin()
    store.put("after", REPLY)
    store.forget()
    assert store.get("before") is not None
    assert store.get("after") is None


def test_what_was_not_used_for_long_is_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for place, key in enumerate(("old", "new", "newer")):
        store.put(key, REPLY)
        (file,) = (path for path in tmp_path.rglob("*") if path.name == key[2:])
        age = 100 - place if key != "old" else 10_000
        os.utime(file, (time.time() - age, time.time() - age))
    store.tidy(max_seconds=1000)
    assert [store.get(key) is not None for key in ("old", "new", "newer")] == [False, True, True]
    store.tidy(max_bytes=int(1.5 * len(encode(REPLY))))
    assert [store.get(key) is not None for key in ("new", "newer")] == [False, True]


class _Answering(Sandbox):
    """A sandbox that answers at once, without a process."""

    def __init__(self, folder: Path, reply: Reply = OK) -> None:
        super().__init__(folder)
        self.reply = reply
        self.requests: list[Request] = []

    def run(self, request: Request) -> Reply:
        self.requests.append(request)
        return self.reply


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "isolation", lambda: Isolation("namespaces"))


def _asking(folder: Path, store: Path, scenario: str = "exploits/honest_right", reply: Reply = OK) -> Asking:
    submission = load(SCENARIOS / scenario).build(folder)
    result = Asking(_Answering(submission, reply), Store(store))
    result.begin(Turn(code_of(submission)))
    return result


def _asked(submission: Asking) -> int:
    assert isinstance(submission.sandbox, _Answering)
    return len(submission.sandbox.requests)


@pytest.mark.usefixtures("isolated")
def test_a_question_is_asked_once_by_all_whose_code_for_it_is_the_same(tmp_path: Path) -> None:
    right = _asking(tmp_path / "right", tmp_path / "store")
    bug = _asking(tmp_path / "bug", tmp_path / "store", "lab2/bugs/speedup_upside_down")
    for submission in (right, right, bug):
        assert same(submission.run(PROBE), OK)
        assert same(submission.run(OTHER), OK)
    assert (_asked(right), _asked(bug)) == (2, 1)
    right.sandbox.close()
    bug.sandbox.close()


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    "other",
    [
        replace(PROBE, params={"seed": 1}),
        replace(PROBE, tensors={"x": np.ones(2)}),
        replace(PROBE, ranks=2),
        replace(PROBE, device="vgpu:T4"),
        replace(PROBE, limits=Limits(wall_seconds=7)),
        replace(PROBE, student=False),
    ],
    ids=str,
)
def test_another_question_is_asked(other: Request, tmp_path: Path) -> None:
    right = _asking(tmp_path / "right", tmp_path / "store")
    right.run(PROBE)
    right.run(other)
    right.run(other)
    assert _asked(right) == 2
    right.sandbox.close()


@pytest.mark.usefixtures("isolated")
def test_other_code_of_ours_or_another_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _asking(tmp_path / "right", tmp_path / "store")
    right.run(PROBE)
    with monkeypatch.context() as patch:
        patch.setattr(ours, "of_probe", lambda probe: "changed")
        right.run(PROBE)
    assert _asked(right) == 2
    other = Asking(right.sandbox, right.store)
    other.begin(Turn(code_of(tmp_path / "right")))
    monkeypatch.setattr(ours, "of_machine", lambda isolation: "another")
    other.run(PROBE)
    assert _asked(other) == 3
    right.sandbox.close()


@pytest.mark.usefixtures("isolated")
def test_what_is_not_understood_shares_only_with_itself(tmp_path: Path) -> None:
    first = _asking(tmp_path / "a", tmp_path / "store", "exploits/hostile_files_around_the_labs")
    second = _asking(tmp_path / "b", tmp_path / "store", "exploits/hostile_files_around_the_labs")
    right = _asking(tmp_path / "right", tmp_path / "store")
    for each in (right, first, second):
        each.run(PROBE)
    assert [_asked(each) for each in (right, first, second)] == [1, 1, 0]
    for each in (right, first, second):
        each.sandbox.close()


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("kind", ["error", "tampered"])
def test_what_names_lines_is_shared_only_where_all_lines_are_the_same(kind: str, tmp_path: Path) -> None:
    reply = Reply(kind, (RankReply(kind, where="a.py:3 in f"),), 0.1)  # type: ignore[arg-type]
    right = _asking(tmp_path / "right", tmp_path / "store", reply=reply)
    bug = _asking(tmp_path / "bug", tmp_path / "store", "lab2/bugs/speedup_upside_down", reply=reply)
    for submission in (right, right, bug, bug):
        submission.run(PROBE)
    assert (_asked(right), _asked(bug)) == (1, 1)
    right.sandbox.close()
    bug.sandbox.close()


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    "reply",
    [
        Reply("timeout", (RankReply("ok"), RankReply("timeout")), 60.0),
        replace(OK, notes=(Note(DESCENDANTS, "1 process"),)),
        replace(OK, notes=(Note("restart", "it ended"),)),
    ],
    ids=["timeout", "descendants", "restart"],
)
def test_what_is_chance_is_not_kept(reply: Reply, tmp_path: Path) -> None:
    right = _asking(tmp_path / "right", tmp_path / "store", reply=reply)
    right.run(PROBE)
    right.run(PROBE)
    assert _asked(right) == 2
    right.sandbox.close()


@pytest.mark.usefixtures("isolated")
def test_what_hangs_on_purpose_gets_little_time_and_is_kept(tmp_path: Path) -> None:
    late = Reply("timeout", (RankReply("timeout"),), 3.0)
    right = _asking(tmp_path / "right", tmp_path / "store", reply=late)
    right.begin(Turn(code_of(tmp_path / "right"), hangs=frozenset({PROBE.probe})))
    right.run(PROBE)
    right.run(PROBE)
    assert isinstance(right.sandbox, _Answering)
    assert [request.limits.wall_seconds for request in right.sandbox.requests if request.limits] == [3.0]
    assert right.too_long == []
    right.run(OTHER)
    assert right.too_long == [OTHER.probe]
    right.sandbox.close()


def test_comments_of_ours_change_nothing_and_code_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "checkout"
    file = root / "grader" / "lab2" / "probes" / "training.py"
    support, sandbox = root / "grader" / "shared" / "probes" / "support.py", root / "gradebox" / "sandbox" / "worker.py"
    for path, text in (
        (file, "from grader.shared.probes.support import plain\n\nLIMIT = 3\n"),
        (support, "def plain(): return 1\n"),
        (sandbox, "import os\n"),
        (root / "vgpu" / "gpu.py", "A = 1\n"),
        (root / "vgpu" / "gpus.toml", "a = 1\n"),
        (root / "grader" / "lab2" / "checks" / "training.py", "B = 1\n"),
    ):
        for folder in (path.parent, *path.parent.parents):
            if folder.is_relative_to(root) and folder != root:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "__init__.py").touch()
        path.write_text(text)
    monkeypatch.setattr(ours, "ROOT", root)
    monkeypatch.setattr(ours, "probe_file", lambda _: file)

    def digest() -> str:
        for cached in (ours.of_probe, ours._everywhere):
            cached.cache_clear()
        return ours.of_probe("lab2.scaling.train")

    before = digest()
    file.write_text('"""Says more."""\n' + file.read_text() + "# a comment\n")
    (root / "grader" / "lab2" / "checks" / "training.py").write_text("B = 2\n")
    assert digest() == before
    digests = {before}
    for path, text in (
        (file, "from grader.shared.probes.support import plain\n\nLIMIT = 4\n"),
        (support, "def plain(): return 2\n"),
        (sandbox, "import sys\n"),
        (root / "vgpu" / "gpu.py", "A = 2\n"),
        (root / "vgpu" / "gpus.toml", "a = 2\n"),
    ):
        path.write_text(text)
        assert digest() not in digests, path
        digests.add(digest())
    for cached in (ours.of_probe, ours._everywhere):
        cached.cache_clear()
