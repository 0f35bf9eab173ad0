"""A link within the repository leads to a file, and to a heading, that exists."""

from tests.documents.pages import PAGES, ROOT, anchors, links

_ALL = (
    *PAGES,
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "docs/site/index.md",
    *(f"docs/decisions/{path.name}" for path in (ROOT / "docs" / "decisions").glob("*.md")),
)


def is_broken(page: str, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = ((ROOT / page).parent / path if path else ROOT / page).resolve()
    return not target.exists() or bool(anchor and anchor not in anchors(str(target.relative_to(ROOT))))


def test_no_link_is_broken() -> None:
    found = [(page, link) for page in _ALL for link in links(page) if "://" not in link]
    assert len(found) > 200
    assert [one for one in found if is_broken(*one)] == []
    assert is_broken("README.md", "docs/nowhere.md")
    assert is_broken("docs/promises.md", "recovery.md#no-such-heading")
    assert not is_broken("docs/promises.md", "recovery.md#disk-full")
