"""Sphinx extension: links that leave `docs/`, so that a page reads the same on GitHub and on the site.

Pages link to the rest of the repository by relative paths (`../deploy/docker`). On the site such a link leads to

- the page that includes the file, where there is one (`included_pages`);
- the rendered notebook, copied into the site, for a notebook (`notebooks/lab1.html` for `notebooks/lab1.ipynb`), where
  `rendered_notebooks` has one;
- the file in the repository, where `repository_url` says what its tree is called on the web;
- nowhere, else: the path is shown instead.

Not for links between pages: MyST resolves those, and says so when one is dead.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_ROOT = Path(__file__).resolve().parents[1]


class RepositoryLinks(SphinxTransform):
    """Replaces MyST's references to files and folders that are no pages."""

    default_priority = 300  # before Sphinx collects downloads, which would copy each file into the site

    def apply(self, **_: Any) -> None:
        sources = {page: _ROOT / path for path, page in self.config.included_pages.items()}
        here = sources.get(self.env.docname, Path(self.env.doc2path(self.env.docname))).parent
        for node in [*self.document.findall(_leaves_the_pages)]:
            path, _, anchor = node["reftarget"].partition("#")
            if node.get("refdomain") == "doc":  # MyST takes any Markdown file for a page, and leaves its suffix out
                path, anchor = f"{path}.md", node["reftargetid"] or ""
            target = (here / path).resolve()
            if path and target.exists() and target.is_relative_to(_ROOT):
                node.replace_self(self._replacement(node, target, anchor))

    def _replacement(self, node: nodes.Element, target: Path, anchor: str) -> list[nodes.Node]:
        path = target.relative_to(_ROOT).as_posix()
        text = [child for inner in node.children for child in inner.children]
        suffix = f"#{anchor}" if anchor else ""
        if page := self.config.included_pages.get(path) or self._page(target):
            inner = nodes.inline("", "", *text, classes=["doc"])
            return [
                addnodes.pending_xref(
                    "",
                    inner,
                    refdomain="doc",
                    reftype="myst",
                    refdoc=self.env.docname,
                    reftarget=page,
                    reftargetid=anchor or None,
                    refexplicit=True,
                )
            ]
        if path.endswith(".ipynb") and (_rendered(self.config) / f"{target.stem}.html").is_file():
            up = "../" * self.env.docname.count("/")
            return [nodes.reference("", "", *text, internal=True, refuri=f"{up}notebooks/{target.stem}.html")]
        if url := self.config.repository_url:
            return [nodes.reference("", "", *text, internal=False, refuri=f"{url.rstrip('/')}/{path}{suffix}")]
        if path in node.astext():
            return [nodes.literal(path, path)]
        return [*text, nodes.Text(" ("), nodes.literal(path, path), nodes.Text(")")]

    def _page(self, target: Path) -> str | None:
        name = self.env.path2doc(target)
        return name if name in self.env.found_docs else None


def _leaves_the_pages(node: nodes.Node) -> bool:
    if isinstance(node, addnodes.download_reference):
        return True
    if not isinstance(node, addnodes.pending_xref) or node.get("reftype") != "myst":
        return False
    return node.get("refdomain") is None or (node["refdomain"] == "doc" and node["reftarget"].startswith("/"))


def _copy_notebooks(app: Sphinx, error: Exception | None) -> None:
    if error is None and (rendered := _rendered(app.config)).is_dir():
        shutil.copytree(rendered, Path(app.outdir) / "notebooks", dirs_exist_ok=True)


def _rendered(config: Any) -> Path:
    """The folder with a page of each notebook; a relative one is meant from the repository's root."""
    return _ROOT / str(config.rendered_notebooks)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository_url", "", "env", types=(str,))
    app.add_config_value("rendered_notebooks", "build/notebooks", "env", types=(str,))
    app.add_config_value("included_pages", {}, "env", types=(dict,))
    app.add_transform(RepositoryLinks)
    app.connect("build-finished", _copy_notebooks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
