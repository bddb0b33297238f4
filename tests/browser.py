"""Pages in a headless Chromium: what axe-core finds in them, on every screen and in both themes.

For tests that open pages; each skips, and says why, where the extra `browser-tests` or Chromium is not there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

WIDE, NARROW = 1280, 390
SCREENS = [(width, theme) for width in (WIDE, NARROW) for theme in ("light", "dark")]
"""Widths in pixels, and what a person prefers."""


def on_screens(by_day: tuple[int, str]) -> list[Any]:
    """Every screen; by day this one."""
    return [pytest.param(*screen, marks=() if screen == by_day else pytest.mark.night) for screen in SCREENS]


def on_every_screen(names: Sequence[str], *, by_day: Sequence[str]) -> list[Any]:
    """Each name on each screen; by day some names on one, in turn: pages share their style sheets and scripts."""
    screens = ((WIDE, "light"), (NARROW, "dark"))
    days = {(name, *screens[number % 2]) for number, name in enumerate(by_day)}
    return [
        pytest.param(*case, marks=() if case in days else pytest.mark.night)
        for name in names
        for screen in SCREENS
        for case in [(name, *screen)]
    ]


@contextmanager
def launched() -> Iterator[Any]:
    """A Chromium without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright, of the extra browser-tests, is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("Chromium is not on this machine: `apt install chromium` brings it")
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def opened(browser: Any, address: str, *, width: int = WIDE, theme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """A page on a screen, and the addresses that it asked for, itself among them."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    page.goto(address)
    yield page, urls
    context.close()


def open_everything(page: Any) -> None:
    """Unfold all that can be unfolded."""
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def violations(page: Any) -> list[str]:
    """What axe-core finds wrong with a page as it is shown now, its rules of best practice included."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}; {len(rule['nodes'])} places, the first {node['target']}: "
        f"{' '.join(node['failureSummary'].split())}"
        for rule in axe.run(page).response["violations"]
        for node in rule["nodes"][:1]
    ]


def overflow(page: Any) -> int:
    """Pixels by which a page is wider than its screen."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
