"""The documentation site: ``make site`` writes it to build/site, from README.md, ARCHITECTURE.md, docs/ and examples/ as they stand.

Links to other files of the repository, such as programs, become downloads. Nothing is loaded from another host.
"""

from typing import Any

from halfmq import __version__

project = "halfmq"
author = "halfmq"
release = version = __version__
html_title = f"halfmq {__version__}"

root_doc = "docs/site/index"
include_patterns = [
    "docs/site/index.md", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md", "docs/decisions/*.md", "examples/README.md",
    "packages/*/README.md",
    "examples/*/README.md",
]  # fmt: skip
extensions = ["myst_parser"]
# As GitHub makes them.
myst_heading_anchors = 4
# Blocks of a terminal with output are not pure shell; a diagram in Mermaid is shown as its text.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"

html_theme = "furo"
html_extra_path = ["root"]
html_copy_source = False
html_show_sphinx = False


def _apart(app: object, page: str, source: list[str]) -> None:
    """The single decisions are found by their list and by search, and are not in the menu."""
    if page.startswith("docs/decisions/0"):
        source[0] = "---\norphan: true\n---\n" + source[0]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _apart)
