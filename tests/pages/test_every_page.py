"""Every page that the course makes for people: on every screen, in both themes, on paper, by keyboard, and alone.

axe-core finds nothing wrong, nothing is wider than a phone, nothing is loaded from elsewhere, and a page fits in a
megabyte. The page in which people grade is opened in `tests/gradebook/plugins/grading_ui/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.monitoring.web import Server
from tests.browser import NARROW, SCREENS, WIDE, on_every_screen, open_everything, opened, overflow, violations
from tests.by_day import one_in
from tests.monitoring.test_web_page import Told
from tests.pages.made import PAGES

ROOT = Path(__file__).parents[2]
MOST_BYTES = 1_000_000
OPEN_HINTS = "[...document.querySelectorAll('details.hint')].filter(one => one.open && one.checkVisibility()).length"


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A page by its name, made once."""
    made: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder / "page.html"
            made[name].write_text(PAGES[name](folder), encoding="utf-8")
        return made[name]

    return write


@pytest.fixture(scope="module")
def address(written: Callable[[str], Path]) -> Callable[[str], str]:
    return lambda name: written(name).as_uri()


@pytest.mark.parametrize(("name", "width", "theme"), on_every_screen(list(PAGES), by_day=["grade", "feedback"]))
def test_axe_finds_nothing_wrong_and_nothing_is_cut_off(
    name: str, width: int, theme: str, browser: Any, address: Callable[[str], str]
) -> None:
    with opened(browser, address(name), width=width, theme=theme) as (page, urls):
        assert overflow(page) <= 0
        if width == WIDE:
            assert violations(page) == []
        open_everything(page)
        assert violations(page) == [], "with everything unfolded"
        assert overflow(page) <= 0, "with everything unfolded"
        assert urls == [address(name)]


@pytest.mark.parametrize("name", one_in(4, PAGES))
def test_a_page_is_small_and_says_what_it_is(name: str, browser: Any, written: Callable[[str], Path]) -> None:
    assert written(name).stat().st_size < MOST_BYTES
    with opened(browser, written(name).as_uri()) as (page, _):
        assert page.title()
        assert page.locator("h1").count() == 1


@pytest.mark.parametrize("name", one_in(4, PAGES))
def test_paper_is_light_whatever_the_screen_is(name: str, browser: Any, address: Callable[[str], str]) -> None:
    with opened(browser, address(name), theme="dark") as (page, _):
        assert brightness(page) < 80
        page.emulate_media(media="print")
        assert brightness(page) > 200
        assert ink(page) < 80


@pytest.mark.night
def test_hints_open_one_by_one_by_keyboard_alone(browser: Any, address: Callable[[str], str]) -> None:
    with opened(browser, address("grade"), width=NARROW) as (page, _):
        first = page.locator("summary:has-text('Hint 1 of 3'):visible").first
        reach(page, first)
        assert page.evaluate(OPEN_HINTS) == 0
        for number in (1, 2, 3):
            assert re.match(f"Hint {number} of 3: .*for “.+”", focused(page))
            text = page.evaluate("document.activeElement.nextElementSibling.checkVisibility()")
            assert text is False
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.nextElementSibling.checkVisibility()") is True
            assert page.evaluate(OPEN_HINTS) == number
            page.keyboard.press("Tab")
        assert "Hint" not in focused(page) or focused(page).startswith("Hint 1")  # of another check
        assert page.evaluate(OPEN_HINTS) == 3


def test_a_hint_that_is_closed_leaves_no_trace_on_paper(browser: Any, address: Callable[[str], str]) -> None:
    with opened(browser, address("grade")) as (page, _):
        page.locator("summary:has-text('Hint 1 of 3'):visible").first.click()
        page.emulate_media(media="print")
        shown = page.locator("details.hint:visible")
        assert shown.count() == 1
        assert page.locator("text=Hint 2 of 3").locator("visible=true").count() == 0


def test_a_link_leads_to_a_check_that_is_seen(browser: Any, address: Callable[[str], str]) -> None:
    with opened(browser, address("grade")) as (page, _):
        targets = page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map(one => one.hash.slice(1))")
        assert len(targets) > 50
        assert page.evaluate("targets => targets.filter(one => !document.getElementById(one))", targets) == []
        link = page.locator(".mistakes li > a").last
        target = str(link.get_attribute("href")).removeprefix("#")
        link.click()
        assert page.evaluate("id => document.getElementById(id).checkVisibility()", target) is True


@pytest.fixture
def monitor() -> Iterator[str]:
    server = Server(Told(points=60), 0)
    yield server.url
    server.close()


@pytest.mark.night
@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_the_monitor_of_a_training_shows_itself_to_everybody(
    width: int, theme: str, browser: Any, monitor: str
) -> None:
    with opened(browser, monitor, width=width, theme=theme) as (page, urls):
        page.wait_for_selector("svg")
        assert violations(page) == []
        assert overflow(page) <= 0
        assert {url for url in urls if not url.startswith((monitor, "data:"))} == set()


NOTEBOOKS = sorted(file.stem for file in (ROOT / "notebooks" / "src").glob("*.py"))


@pytest.mark.night
@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_as_a_page(name: str, width: int, theme: str, browser: Any, tmp_path: Path) -> None:
    for needed in ("jupytext", "nbconvert"):
        pytest.importorskip(needed, reason='the notebooks need the extra "notebooks"')
    from notebooks import build

    file = tmp_path / f"{name}.html"
    file.write_text(build.render(build.from_source(name), name), encoding="utf-8")
    assert file.stat().st_size < MOST_BYTES
    with opened(browser, file.as_uri(), width=width, theme=theme) as (page, urls):
        assert violations(page) == []
        assert overflow(page) <= 0
        assert urls == [file.as_uri()]


def brightness(page: Any) -> float:
    """Of what stands behind the text, 0 to 255."""
    return _mean(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def ink(page: Any) -> float:
    """Of the text."""
    return _mean(page.evaluate("getComputedStyle(document.body).color"))


def _mean(color: str) -> float:
    parts = [float(part) for part in re.findall(r"[\d.]+", color)][:3]
    assert len(parts) == 3, color
    return sum(parts) / 3


def focused(page: Any) -> str:
    """What the element says that a key would reach."""
    return " ".join(str(page.evaluate("document.activeElement.textContent")).split())


def reach(page: Any, element: Any) -> None:
    """Press Tab until the focus is there."""
    for _ in range(400):
        page.keyboard.press("Tab")
        if element.evaluate("one => one === document.activeElement"):
            return
    raise AssertionError("no Tab leads there")
