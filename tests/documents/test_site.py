"""``make site``: every page is in it, and reachable, without a warning; nothing in it is loaded from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import PAGES, ROOT

_LOADS = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](https?:)?//""")


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(target / "trees")]
    command += ["-c", str(source / "docs" / "site"), str(source), str(target / "site")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_page_is_in_the_site_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    missing = [
        page for page in (*PAGES, "CHANGELOG.md", "ARCHITECTURE.md") if not (site / page).with_suffix(".html").exists()
    ]
    assert missing == []
    assert "rollback" in (site / "searchindex.js").read_text()
    assert (site / "docs" / "site" / "index.html").exists(), "to which index.html leads"
    elsewhere = [path.name for path in site.rglob("*.html") if _LOADS.search(path.read_text())]
    assert elsewhere == []


@pytest.mark.slow
def test_a_page_that_no_menu_has_and_a_link_that_leads_nowhere_are_errors(tmp_path: Path) -> None:
    for path in (ROOT / "docs" / "site").rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (tmp_path / "docs" / "site" / "index.md").write_text("# halfmq\n\n[there](../page.md#no-such-heading)\n")
    (tmp_path / "docs" / "page.md").write_text("# A page\n")
    done = build(tmp_path, tmp_path / "built")
    assert done.returncode != 0
    assert "isn't included in any toctree" in done.stderr
    assert "no-such-heading" in done.stderr
