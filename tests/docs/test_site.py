"""The site that `make docs` builds: no warning, no dead link, no dead anchor, and nothing that axe-core finds wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from tests.browser import launched, on_every_screen, open_everything, opened, overflow, violations
from tests.docs.markdown import ROOT

for needed in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(needed, reason='the site needs the extra "docs"')

pytestmark = pytest.mark.night  # Sphinx takes a core half a minute; by day test_pages.py follows each page's links

REPOSITORY = "https://repository.invalid/tree/main"
"""A stand-in for the address at which a course's files can be read."""


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    notebooks = tmp_path_factory.mktemp("notebooks")
    for source in (ROOT / "notebooks" / "src").glob("*.py"):
        (notebooks / f"{source.stem}.html").write_text("<h1>What make docs renders</h1>")
    options = f"-Drepository_url={REPOSITORY}", f"-Drendered_notebooks={notebooks}"
    # A warning of Sphinx, such as a page that no menu names, is an error.
    return build(tmp_path_factory.mktemp("site"), "-W", "--keep-going", *options)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def build(folder: Path, *options: str) -> Path:
    """The site in `folder`."""
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", *options, str(ROOT / "docs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_link_within_the_site_leads_to_a_page_and_a_place_in_it(site: Path, pages: dict[Path, Page]) -> None:
    assert [f"{page}: {target}" for page, target, exists in internal(site, pages) if not exists] == []


def test_every_link_into_the_repository_names_a_file_that_is_there(pages: dict[Path, Page]) -> None:
    targets = {
        target.removeprefix(REPOSITORY) for page in pages.values() for target in page.targets if REPOSITORY in target
    }
    assert "/deploy/docker" in targets
    assert [target for target in targets if not (ROOT / unquote(target.partition("#")[0]).lstrip("/")).exists()] == []


def test_hand_outs_and_rendered_notebooks_are_part_of_the_site(site: Path, pages: dict[Path, Page]) -> None:
    assert "../included/lab1_gpu_basics.html" in pages[site / "labs" / "lab1.html"].targets
    assert "../notebooks/lab1.html" in pages[site / "labs" / "lab1.html"].targets
    assert (site / "notebooks" / "lab1.html").is_file()


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert not [target for target in page.targets if target.startswith("//")], path
        source = path.read_text()
        assert '<script src="http' not in source
        assert '<link rel="stylesheet" type="text/css" href="http' not in source


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as made:
        yield made


@pytest.mark.parametrize(
    ("name", "width", "theme"),
    on_every_screen(
        [
            "index",
            "search",
            "student",
            "chapter",
            "labs/lab1",
            "labs/lab1-traps",
            "included/lab5_production",
            "class-grading",
        ],
        by_day=["labs/lab1", "class-grading"],
    ),
)
def test_axe_finds_nothing_wrong_with_a_page(name: str, width: int, theme: str, site: Path, browser: Any) -> None:
    with opened(browser, (site / f"{name}.html").as_uri(), width=width, theme=theme) as (page, requests):
        open_everything(page)
        assert violations(page) == []
        assert overflow(page) <= 0
        assert {urlsplit(url).scheme for url in requests} <= {"file", "data"}


@pytest.mark.parametrize("words", ["checkpoint", "traps", "mixed precision"])
def test_the_search_lists_a_page_once_and_no_two_by_one_name(words: str, site: Path, browser: Any) -> None:
    query = f"?q={words.replace(' ', '+')}"
    with opened(browser, (site / "search.html").as_uri() + query) as (page, _):
        page.wait_for_function("document.querySelectorAll('ul.search > li').length > 4")
        page.wait_for_function("/found|finished/i.test(document.querySelector('.search-summary').textContent)")
        links = page.locator("ul.search > li > a")
        pages = [urlsplit(str(address)).path for address in links.evaluate_all("all => all.map(one => one.href)")]
        assert (len(pages), len(links.all_inner_texts())) == (len(set(pages)), len(set(links.all_inner_texts())))


def test_without_an_address_a_path_stands_in_place_of_the_link(tmp_path: Path) -> None:
    build(tmp_path, "-Dinclude_patterns=slurm.md", "-Droot_doc=slurm", "-Dhtml_theme=basic", "-Drepository_url=")
    text = (tmp_path / "slurm.html").read_text()
    assert "deploy/slurm</span></code>" in text
    assert 'href="../deploy' not in text


def internal(site: Path, pages: dict[Path, Page]) -> Iterator[tuple[str, str, bool]]:
    for path, page in pages.items():
        for target in page.targets:
            address, anchor = urldefrag(target)
            if urlsplit(target).scheme or target.startswith("//"):
                continue
            file = (path.parent / unquote(address.partition("?")[0])).resolve() if address else path
            exists = file.exists() and (not anchor or file not in pages or unquote(anchor) in pages[file].anchors)
            yield path.relative_to(site).as_posix(), target, exists
