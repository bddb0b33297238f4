"""A report is text of somebody who may mean harm: what of it reaches the page."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

nh3 = pytest.importorskip("nh3", reason="nh3, of the extra manual, is not installed")

from gradebook.plugins.grading_ui import report  # noqa: E402
from gradebook.plugins.grading_ui.report import Picture, Report  # noqa: E402

PLOT = Picture("lab1_gpu_basics/results/a plot.png", Path("x"), "image/png")
HOSTILE = """
<script>alert(1)</script><SCRIPT SRC=//evil.example/x.js></SCRIPT>
<img src=x onerror=alert(1)><img src="https://evil.example/x.png"><img src="//evil.example/y.png">
<svg onload=alert(1)><animate/></svg><iframe src="https://evil.example"></iframe><object data=x></object>
<a href="javascript:alert(1)">one</a> <a href="data:text/html,x">two</a> <a href="/../unit/x">three</a>
[four](javascript:alert(1)) [five](vbscript:x) [six](&#x6A;avascript:alert(1)) <javascript:alert(1)>
![](https://evil.example/z.png) ![x](data:image/svg+xml;base64,PHN2Zz4=) ![](../../../../etc/passwd)
<form action="https://evil.example"><input name=q><button>go</button></form><style>body{display:none}</style>
<p style="position:fixed" id="status" class="conflict" onclick="x()">p</p><base href="https://evil.example/">
<meta http-equiv=refresh content="0;url=https://evil.example"><link rel=stylesheet href=//evil.example/x.css>
<math><mi//xlink:href="data:x,<script>alert(1)</script>"></math><template><script>x</script></template>

`<script>alert("code")</script>` <details open ontoggle=alert(1)>x</details> \u202e\x1b[2J
"""


def to_html(text: str, *pictures: Picture) -> str:
    return report.to_html(Report("lab1_gpu_basics/REPORT.md", text), pictures, "unit/u/picture/")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_windows_are_line_ends(mark: str, end: str) -> None:
    text = "# T\n\n```toml\na=1\n```\n\n## Next\n\ntext ![p](results/a%20plot.png)\n"
    assert to_html(mark + text.replace("\n", end), PLOT) == to_html(text, PLOT)
    before, after = Report("REPORT.md", text), Report("REPORT.md", mark + text.replace("\n", end))
    assert report.difference([before], [after]) == []


def test_nothing_that_runs_loads_or_sends_is_left() -> None:
    made = to_html(HOSTILE)
    tags = {tag.lower() for tag in re.findall(r"<([a-zA-Z0-9]+)", made)}
    assert tags <= {"p", "a", "img", "code", "mark", "details", "br"}
    attributes = set(re.findall(r'<[^>]*?\s([a-z-]+)="', made))
    assert attributes <= {"href", "rel", "target", "alt", "title"}
    assert not re.findall(r'href="(?!https?://)', made)
    assert 'src="' not in made
    assert "&lt;script&gt;alert(&quot;code&quot;)" in made or '&lt;script&gt;alert("code")' in made
    assert "\u202e" not in made
    assert "\x1b" not in made


def test_a_link_tells_its_target_nothing() -> None:
    made = to_html("[a paper](https://example.org/paper)")
    assert 'rel="noopener noreferrer nofollow"' in made
    assert 'target="_blank"' in made


@pytest.mark.parametrize(
    "text",
    [
        "![the plot](results/a%20plot.png)",
        "![the plot](<results/a plot.png>)",
        r"![the plot](<results\a plot.png>)",
        '<img src="./results/a plot.png">',
    ],
)
def test_a_picture_of_the_submission_is_shown_by_its_number(text: str) -> None:
    assert 'src="unit/u/picture/0"' in to_html(text, PLOT)


def test_a_picture_that_is_not_there_is_named_in_words() -> None:
    said = "[not in the submission, or no picture of at most 10 MiB: the plot results/b.png]"
    assert said in to_html("![the plot](results/b.png)", PLOT)


def test_tables_and_code_are_rendered_and_comments_of_the_template_are_not() -> None:
    made = to_html("<!-- explain -->\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```toml\n[claims]\n```\n")
    assert "<table>" in made
    assert "[claims]" in made
    assert "explain" not in made


@pytest.mark.parametrize("piece", ["[", "![", "> ", "*_", "<div>", "|a", "- ", "`", "<", "&#", "[a](", "\n1. "])
def test_no_text_keeps_the_page_busy(piece: str) -> None:
    text = (piece * report.MAX_CHARACTERS)[: report.MAX_CHARACTERS]
    started = time.process_time()
    assert isinstance(to_html(text), str)
    assert time.process_time() - started < 20  # the dearest, of brackets, took 7 s on a slow core


def test_what_is_longer_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "REPORT.md").write_text("x" * (report.MAX_CHARACTERS + 1))
    (text,) = report.reports(tmp_path)
    assert len(text.text) < report.MAX_CHARACTERS + 100
    assert "cut here: 40,001 characters" in text.text


def test_links_and_giants_are_no_part_of_a_submission(tmp_path: Path) -> None:
    lab = tmp_path / "lab1_gpu_basics"
    lab.mkdir()
    (lab / "good.png").write_bytes(b"\x89PNG")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (lab / "link.png").symlink_to(tmp_path / "secret.png")
    (lab / "folder").symlink_to("/etc")
    with (lab / "large.png").open("wb") as file:
        file.truncate(report.MAX_PICTURE_BYTES + 1)
    (lab / "REPORT.md").symlink_to("/etc/passwd")
    assert [picture.name for picture in report.pictures(lab.parent)] == ["lab1_gpu_basics/good.png", "secret.png"]
    assert report.reports(tmp_path) == ()


def test_what_changed_between_two_versions() -> None:
    before, after = (Report("lab1/REPORT.md", "a\nb\n"),), (Report("lab1/REPORT.md", "a\nc\n"),)
    assert [line for line in report.difference(before, after) if line[:1] in "+-" and line[1:2] not in "+-"] == [
        "-b",
        "+c",
    ]
    assert report.difference(before, before) == []
