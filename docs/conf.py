"""How Sphinx builds the site: `make docs`, into build/docs.

Settings of a course, from the environment:

- `GPULABS_REPOSITORY_URL`: where the files of this repository can be read, branch included
  (`https://HOST/OWNER/NAME/tree/main`). Without it the site shows paths instead of links into the repository.
"""

import os
import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS))

project = "GPU computing labs"
author = "The gpu-computing-labs maintainers"
html_title = project
language = "en"

extensions = ["myst_parser", "recorded_tables", "repository_links", "accessible"]
exclude_patterns = ["_static"]
smartquotes = False
myst_heading_anchors = 4

repository_url = os.environ.get("GPULABS_REPOSITORY_URL", "")
# Files outside of docs/ that are pages of the site: docs/included/NAME.md holds nothing but their path.
included_pages = {
    (page.parent / page.read_text().split()[1]).resolve().relative_to(_DOCS.parent).as_posix(): f"included/{page.stem}"
    for page in (_DOCS / "included").glob("*.md")
}

highlight_language = "text"  # what names none is a program's output; as Python its `class` and `is` were coloured

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["search.js"]
html_show_copyright = False
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
pygments_dark_style = "github-dark"

_GREEN, _LIGHT_GREEN = "#17703f", "#5cc98d"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": _GREEN,
        "color-brand-content": _GREEN,
        "color-brand-visited": _GREEN,
    },
    "dark_css_variables": {
        "color-brand-primary": _LIGHT_GREEN,
        "color-brand-content": _LIGHT_GREEN,
        "color-brand-visited": _LIGHT_GREEN,
    },
    "navigation_with_keys": True,
}
