"""What ``lint-imports`` does not see of the architecture: pure packages, documents that name what exists, no foreign paths in the text."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "halfmq"


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


#: What ``core``, ``wire`` and ``model`` may import besides halfmq: nothing here calls the operating system or reads a clock.
#: ``importlib`` is for the optional packages of ``wire/remoting/compression.py``. ``urllib.parse`` is, and the rest of ``urllib`` is not.
PURE = {
    "base64", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "hmac", "importlib", "ipaddress", "itertools", "msgspec",
    "operator", "re", "struct", "typing", "urllib.parse", "zlib", "zlib_ng",
}  # fmt: skip


#: What the rules of ``sql`` may import as well: types of an interface, and dates for messages.
OF_RULES = {"contextlib", "datetime", "types"}


@pytest.mark.parametrize(
    ("package", "also"), [("core", set()), ("wire", set()), ("model", set()), ("sql/rules", OF_RULES)]
)
def test_decisions_and_codecs_do_no_io(package: str, also: set[str]) -> None:
    pure = PURE | also
    checked = 0
    for path in (SOURCE / package).rglob("*.py"):
        roots = {name.split(".")[0] for name in imports_of(path) - pure} - {"halfmq"}
        assert roots <= pure, f"{path.relative_to(ROOT)} imports {sorted(roots - pure)}"
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"open", "print", "input"}, (
            f"{path.relative_to(ROOT)} calls {sorted(calls & {'open', 'print', 'input'})}"
        )
        checked += 1
    assert checked > 3


#: The places that open and accept sockets, where TLS would enter: of clients, of the broker; the probes of a relay or worker,
#: without TLS; and a server that the benchmark compares the broker with. Libraries of the databases and of the relay's targets have
#: sockets of their own.
OF_SOCKETS = {
    "client/connector.py": {"create_connection"},
    "broker/listener.py": {"socket", "connect_accepted_socket"},
    "processes/http_port.py": {"start_server"},
    "bench/baseline.py": {"create_server"},
}
_OPENS = {
    "create_connection", "create_server", "connect_accepted_socket", "create_unix_connection", "create_unix_server",
    "open_connection", "open_unix_connection", "start_server", "start_unix_server", "sock_connect", "sock_accept",
    "create_datagram_endpoint", "start_tls",
}  # fmt: skip


def test_one_place_opens_sockets_and_one_accepts_them() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = {
            node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
        }
        opens = calls & (_OPENS | ({"socket"} if "socket" in imports_of(path) else set()))
        if opens:
            found[path.relative_to(SOURCE).as_posix()] = opens
    assert found == OF_SOCKETS


#: Decisions and records tell what was there at their time.
_DATED = ("docs/decisions/", "docs/records/")


def test_documents_name_tests_that_exist() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, timeout=60, check=False
    ).stdout
    pages = [name for name in listed.decode().split("\0") if name and not name.startswith(_DATED)]
    named = [
        (page, test)
        for page in pages
        for test in re.findall(r"\btests/[a-z0-9_/]+(?:\.py)?(?![a-z0-9_/*])", (ROOT / page).read_text())
    ]
    assert len(named) > 20
    assert [(page, test) for page, test in named if not (ROOT / test).exists()] == []


def anchors(page: str) -> set[str]:
    """Of its headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_hit() -> None:
    pages = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.is_file()]
    links = [
        (page, *link) for page in pages for link in re.findall(r"\]\(([^():#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    ]
    assert len(links) > 100
    missed = []
    for page, name, anchor in links:
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            missed.append(f"{page.relative_to(ROOT)}: {name}#{anchor}")
    assert missed == []


def without_docstring(tree: ast.Module | ast.ClassDef, inside: str = "") -> list[str]:
    """Public classes and functions that say nothing."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None:
                found.append(inside + node.name)
            if isinstance(node, ast.ClassDef):
                found += without_docstring(node, f"{inside}{node.name}.")
    return found


@pytest.mark.parametrize("path", sorted((SOURCE / "broker" / "services").glob("*.py")), ids=lambda path: path.stem)
def test_every_call_of_a_service_says_what_it_does(path: Path) -> None:
    """Front doors are written against them: units, refusals, and what the caller does next belong there."""
    assert without_docstring(ast.parse(path.read_text())) == []


def test_a_call_that_says_nothing_is_noticed() -> None:
    source = 'class A:\n    """Yes."""\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\n'
    assert without_docstring(ast.parse(source)) == ["A.f", "h"]


def test_the_project_names_no_registry_host_and_no_path_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, timeout=60, check=False).stdout
    files = [ROOT / name for name in listed.decode().split("\0") if name]
    assert len(files) > 20
    pattern = re.compile(
        r"/(?:work|root|home/[a-z]+)/[A-Za-z.]|https?://[a-z.-]*(?:pypi|pythonhosted|npmjs|crates)[a-z.-]*"
    )
    for path in files:
        if path.suffix in {".py", ".md", ".toml", ".lock", ".txt", ".xml", ".java", ".html", ""} and path.is_file():
            found = pattern.search(path.read_text(errors="replace"))
            if path.name != Path(__file__).name:
                assert found is None, f"{path.relative_to(ROOT)}: {found and found.group()}"
