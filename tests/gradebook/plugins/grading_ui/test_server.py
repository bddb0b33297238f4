"""The server tells nothing to, and does nothing for, whoever is not the page that it serves."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("nh3", reason="nh3, of the extra manual, is not installed")

from werkzeug.test import Client

from gradebook.grading.manual_grading import ManualGradingError, marks, requests
from gradebook.grading.manual_grading.requests import NewRequest
from gradebook.plugins.grading_ui import presence, server
from gradebook.plugins.grading_ui.board import Board
from tests.gradebook.manual_grading.conftest import RUBRIC, ManualClass

TOKEN = "a-secret"
ORIGIN = {"Origin": "http://127.0.0.1:47000"}


class Page:
    """A page that asks as ours does."""

    def __init__(self, manual: ManualClass, grader: str = "Ana") -> None:
        self.client = Client(server.App(Board(manual.folder, grader), TOKEN))

    def ask(self, method: str, path: str, body: object = None, *, token: str = TOKEN, **more: Any) -> tuple[int, Any]:
        headers = more.pop("headers", ORIGIN if method != "GET" else {})
        answer = self.client.open(
            f"/{token}/{path}", method=method, base_url=more.pop("base", "http://127.0.0.1:47000"), headers=headers,
            data=None if body is None else json.dumps(body), content_type=more.pop("kind", "application/json"),
        )  # fmt: skip
        return answer.status_code, answer.get_json(silent=True)

    def overview(self) -> Any:
        return self.ask("GET", "class")[1]

    def unit(self, label: str) -> str:
        return next(str(unit["id"]) for unit in self.overview()["units"] if unit["label"].startswith(label))


def mark(manual: ManualClass, key: str, **more: object) -> dict[str, object]:
    content = manual.units()[key].content
    return {"revision": 0, "content": content, "comments": [], "adjust": 0, "text": "", "done": True} | more


@pytest.fixture
def page(manual: ManualClass) -> Page:
    return Page(manual)


def test_without_the_secret_nothing_is_told(page: Page) -> None:
    for path in ("", "class", "page.js", "unit/x"):
        status, body = page.ask("GET", path, token="guess")
        assert status == 403
        assert "link" in body["error"]
    assert page.client.get("/", base_url="http://127.0.0.1:47000").status_code in (403, 404)


@pytest.mark.parametrize("base", ["http://evil.example", "http://127.0.0.1.evil.example:47000", "http://192.168.1.5"])
def test_under_another_hosts_name_nothing_is_told(page: Page, base: str) -> None:
    assert page.ask("GET", "class", base=base)[0] == 403


def test_through_a_tunnel_with_another_port_it_answers(page: Page) -> None:
    assert page.ask("GET", "class", base="http://localhost:9000")[0] == 200


@pytest.mark.parametrize(
    "origin", [{}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:8888"}, {"Origin": "https://x"}]
)
def test_another_page_changes_nothing(page: Page, manual: ManualClass, origin: dict[str, str]) -> None:
    path = f"unit/{page.unit('Ada')}/mark/discussion"
    assert page.ask("PUT", path, mark(manual, "student ada"), headers=origin)[0] == 403
    assert marks.load_all(manual.folder) == {}


def test_a_form_of_another_page_is_no_json(page: Page, manual: ManualClass) -> None:
    path = f"unit/{page.unit('Ada')}/mark/discussion"
    assert page.ask("PUT", path, mark(manual, "student ada"), kind="text/plain")[0] == 400


def test_every_answer_forbids_what_the_page_does_not_need(page: Page) -> None:
    answer = page.client.get(f"/{TOKEN}/", base_url="http://127.0.0.1:47000")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_picture_can_run_nothing(manual: ManualClass) -> None:
    folder = manual.small.submissions / "ada" / "lab1_gpu_basics"
    (folder / "plot.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    manual.small.grade(roster=manual.small.submissions.parent / "roster.csv")
    page = Page(manual)
    unit = page.unit("Ada")
    answer = page.client.get(f"/{TOKEN}/unit/{unit}/picture/0", base_url="http://127.0.0.1:47000")
    assert answer.content_type == "image/svg+xml"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    for number in ("1", "-1", "../../../x"):
        wrong = page.client.get(f"/{TOKEN}/unit/{unit}/picture/{number}", base_url="http://127.0.0.1:47000")
        assert wrong.status_code == 404


def test_typed_points_stay_on_the_page_if_the_criterion_is_worth_more(manual: ManualClass) -> None:
    page = Page(manual)
    unit = page.unit("Ada")
    path = f"unit/{unit}/mark/discussion"
    made = page.ask("PUT", path, mark(manual, "student ada", adjust=-3))[1]
    manual.write_rubric(text=RUBRIC.replace("points = 6", "points = 12"))
    shown = page.ask("GET", f"unit/{unit}")[1]["marks"]["discussion"]
    assert (float(made["adjust"]), float(shown["adjust"])) == (-3, -9)
    again = mark(manual, "student ada", adjust=-8, revision=1)
    assert float(page.ask("PUT", path, again)[1]["of"]) == 12
    undone = page.ask("POST", f"unit/{unit}/undo")[1]
    assert float(undone["adjust"]) == -9
    assert manual.line("ada").manual.criteria[0].points == 3  # type: ignore[union-attr]


def test_two_graders_on_one_folder_do_not_write_over_each_other(manual: ManualClass) -> None:
    ana, ben = Page(manual, "Ana"), Page(manual, "Ben")
    path = f"unit/{ana.unit('Ada')}/mark/discussion"
    status, made = ana.ask("PUT", path, mark(manual, "student ada", text="Ana's"))
    assert (status, made["by"], made["revision"]) == (200, "Ana", 1)
    status, reply = ben.ask("PUT", path, mark(manual, "student ada", text="Ben's"))
    assert status == 409
    assert "Ana has changed this" in reply["error"]
    assert reply["now"]["text"] == "Ana's"
    assert ben.ask("PUT", path, mark(manual, "student ada", text="Ben's", revision=1))[0] == 200


def test_a_mark_for_a_version_that_is_gone_is_refused(page: Page, manual: ManualClass) -> None:
    path = f"unit/{page.unit('Ada')}/mark/discussion"
    status, reply = page.ask("PUT", path, mark(manual, "student ada", content="0" * 64))
    assert status == 409
    assert "another version" in reply["error"]


@pytest.mark.parametrize(
    "wrong",
    [{"adjust": "1"}, {"adjust": 1e9}, {"text": "x" * 30_000}, {"comments": ["none"]}, {"done": "yes"}, {"more": 1}],
)
def test_a_mark_that_makes_no_sense_is_refused_in_words(
    page: Page, manual: ManualClass, wrong: dict[str, object]
) -> None:
    path = f"unit/{page.unit('Ada')}/mark/discussion"
    status, reply = page.ask("PUT", path, mark(manual, "student ada", **wrong))
    assert status == 400
    assert reply["error"]
    assert marks.load_all(manual.folder) == {}


def test_a_comment_is_changed_in_one_place_and_not_removed_while_somebody_has_it(
    page: Page, manual: ManualClass
) -> None:
    _, made = page.ask("POST", "comment", {"text": "no unit", "points": -1, "criterion": "discussion"})
    for key, label in (("student ada", "Ada"), ("team blue", "blue")):
        path = f"unit/{page.unit(label)}/mark/discussion"
        assert page.ask("PUT", path, mark(manual, key, comments=[made["id"]]))[0] == 200
    assert page.overview()["comments"][0]["used"] == 2
    assert page.ask("DELETE", f"comment/{made['id']}")[0] == 400
    assert page.ask("PUT", f"comment/{made['id']}", {"text": "no unit!", "points": -2.5})[0] == 200
    points = {row.student: row.manual.criteria[0].points for row in manual.read().students if row.manual}
    assert points == {"ada": Decimal("3.5"), "bob": Decimal("3.5"), "cleo": Decimal("3.5"), "eve": 0}


def test_a_team_is_graded_once(page: Page) -> None:
    assert [unit["label"] for unit in page.overview()["units"]] == ["Ada Lovelace", "blue: Bob, Cleo"]


def test_blind_the_page_has_no_names(manual: ManualClass) -> None:
    manual.write_rubric(blind=True)
    (name,) = requests.add(manual.folder, [NewRequest("ada", "look again")], ["ada"], [])
    (manual.folder / "similarity").mkdir()
    (manual.folder / "similarity" / "similarity.html").write_text("<p>ada and bob</p>")
    page = Page(manual)
    assert page.ask("GET", "similarity")[0] == 404
    text = json.dumps(
        [
            page.overview(),
            *(page.ask("GET", f"unit/{unit['id']}")[1] for unit in page.overview()["units"]),
            page.ask("PUT", f"request/{name}", {"text": "I did."})[1],
        ]
    )
    text = text.replace("# Report of", "").replace("Report of ada", "").replace("Report of bob", "")  # their own words
    for name in ("ada", "bob", "cleo", "lovelace", "blue"):
        assert name not in text.casefold()
    assert "look again" in text


def test_who_has_what_open_is_told_to_the_others(manual: ManualClass) -> None:
    ana, ben = Page(manual, "Ana"), Page(manual, "Ben")
    assert ana.ask("POST", f"open/{ana.unit('Ada')}")[0] == 200
    rows = {unit["label"]: unit["open_by"] for unit in ben.overview()["units"]}
    assert rows["Ada Lovelace"] == "Ana"
    assert {unit["open_by"] for unit in ana.overview()["units"]} == {""}
    presence.tell(manual.folder, "Ana", "")
    assert {unit["open_by"] for unit in ben.overview()["units"]} == {""}


def test_an_answer_is_recorded(page: Page, manual: ManualClass) -> None:
    (name,) = requests.add(manual.folder, [NewRequest("ada", "look again")], ["ada"], [])
    assert page.ask("PUT", f"request/{name}", {"text": "I did."})[0] == 200
    assert requests.load(manual.folder)[0].answered_by == "Ana"


def test_a_full_disk_is_said(page: Page, manual: ManualClass, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    path, body = f"unit/{page.unit('Ada')}/mark/discussion", mark(manual, "student ada")
    monkeypatch.setattr(marks, "replace_file", full)
    status, reply = page.ask("PUT", path, body)
    assert status == 507
    assert "No space left" in reply["error"]


def test_who_may_grade_is_checked_before_the_page_opens(manual: ManualClass) -> None:
    path = manual.folder / "manual_grading" / "rubric.toml"
    path.write_text('graders = ["Ana", "Ben"]\n' + path.read_text())
    with pytest.raises(ManualGradingError, match="the rubric names Ana, Ben"):
        Board(manual.folder, "Cai")
    path.unlink()
    with pytest.raises(ManualGradingError, match="gpulabs manual init"):
        Board(manual.folder, "Ana")


def test_the_server_listens_on_this_machine_only_and_says_when_a_port_is_taken(manual: ManualClass) -> None:
    board = Board(manual.folder, "Ana")
    first, address = server.listen(board, None)
    try:
        assert address.startswith("http://127.0.0.1:")
        assert first.socket.getsockname()[0] == "127.0.0.1"
        second, other = server.listen(board, None)  # the same grader twice: another port, another secret
        second.server_close()
        assert other.split("/")[2:] != address.split("/")[2:]
        with pytest.raises(ManualGradingError, match="is taken"):
            server.listen(board, first.port)
    finally:
        first.server_close()


def test_a_line_of_code_is_commented_on_and_the_comment_is_there_for_all(page: Page, manual: ManualClass) -> None:
    name = page.unit("Ada")
    status, code = page.ask("GET", f"unit/{name}/code")
    assert status == 200
    (file,) = code["files"]
    assert file["name"] == "lab1_gpu_basics/benchmark.py"
    assert "".join(text for _, text in file["lines"][0]) == "# ada"
    about = {"content": code["content"], "file": file["name"], "line": 1, "text": "nice"}
    status, made = page.ask("POST", f"unit/{name}/line", about)
    assert (status, made["code"], made["by"]) == (200, "# ada", "Ana")
    other = Page(manual, "Ben")
    (seen,) = other.ask("GET", f"unit/{name}/code")[1]["comments"]
    assert (seen["line"], seen["text"], seen["by"]) == (1, "nice", "Ana")
    assert other.ask("PUT", f"unit/{name}/line/{made['id']}", {"text": ""})[0] == 409
    assert page.ask("POST", f"unit/{name}/line", {**about, "content": "0" * 64})[0] == 409
    assert page.ask("POST", f"unit/{name}/line", {**about, "file": "../../roster.csv"})[0] == 404
    assert page.ask("POST", f"unit/{name}/line", {**about, "line": 99})[0] == 400
    assert page.ask("PUT", f"unit/{name}/line/{made['id']}", {"text": ""})[0] == 200
    assert page.ask("GET", f"unit/{name}/code")[1]["comments"] == []


def test_the_page_of_similar_submissions_opens_and_can_run_nothing(page: Page, manual: ManualClass) -> None:
    assert page.ask("GET", "similarity")[0] == 404
    assert page.ask("GET", f"unit/{page.unit('Ada')}")[1]["compared"] is False
    (manual.folder / "similarity").mkdir()
    (manual.folder / "similarity" / "similarity.html").write_text("<p>alike</p>")
    answer = page.client.get(f"/{TOKEN}/similarity", base_url="http://127.0.0.1:47000")
    assert (answer.status_code, answer.get_data()) == (200, b"<p>alike</p>")
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert page.ask("GET", f"unit/{page.unit('Ada')}")[1]["compared"] is True
