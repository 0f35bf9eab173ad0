"""The folder list is the architecture: layers, pure packages, a test file for each module, no foreign paths in the text."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "halfmq"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")

#: Modules whose behaviour is tested through another file, with the file that does it.
TESTED_ELSEWHERE: dict[str, str] = {
    "broker/front_door.py": "tests/unit/broker/test_listener.py",
    "broker/recovery.py": "tests/unit/broker/test_broker.py",
    "broker/services/peer.py": "tests/unit/broker/remoting/test_connection.py",
    "client/marker_table.py": "tests/unit/sql/test_marker_table.py",
    "core/events.py": "tests/unit/core/test_session.py",
    "spark/jobs/archive.py": "tests/spark/jobs/test_archive_replay.py",
    "spark/jobs/files.py": "tests/spark/jobs/test_tables.py",
    "spark/jobs/report_plots.py": "tests/unit/spark/jobs/test_report.py",
    "spark/jobs/session.py": "tests/spark/jobs/test_reconcile.py",
    "spark/files/store_files.py": "tests/unit/spark/files/test_direct_reader.py",
    "spark/rows/queue_entries.py": "tests/unit/spark/files/test_queue_files.py",
    "spark/jobs/tables.py": "tests/spark/jobs/test_tables.py",
    "store/whole_file.py": "tests/unit/store/test_topics_file.py",
}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_layers_and_pure_packages_hold() -> None:
    finished = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


#: What ``core``, ``wire`` and ``model`` may import besides halfmq: nothing here calls the operating system or reads a clock.
#: ``importlib`` is for the optional packages of ``wire/remoting/compression.py``.
PURE = {
    "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "importlib", "itertools", "msgspec",
    "operator", "re", "struct", "typing", "zlib", "zlib_ng",
}  # fmt: skip


@pytest.mark.parametrize("package", ["core", "wire", "model"])
def test_decisions_and_codecs_do_no_io(package: str) -> None:
    checked = 0
    for path in (SOURCE / package).rglob("*.py"):
        roots = {name.split(".")[0] for name in imports_of(path)} - {"halfmq"}
        assert roots <= PURE, f"{path.relative_to(ROOT)} imports {sorted(roots - PURE)}"
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


def mirror_of(module: Path) -> Path:
    """The test file of a module: the same folder below ``tests/unit``. A file of that name elsewhere tests another module."""
    inside = module.relative_to(SOURCE)
    return ROOT / "tests" / "unit" / inside.parent / f"test_{inside.name}"


def test_every_module_has_a_test_file_that_mirrors_it() -> None:
    assert len(MODULES) > 200
    missing = {
        str(module.relative_to(SOURCE)): str(mirror_of(module).relative_to(ROOT))
        for module in MODULES
        if not mirror_of(module).exists() and str(module.relative_to(SOURCE)) not in TESTED_ELSEWHERE
    }
    assert not missing, f"no test file: {missing}; if another file tests it, list that in TESTED_ELSEWHERE"


def test_a_module_tested_elsewhere_names_a_file_that_exists() -> None:
    for module, test in TESTED_ELSEWHERE.items():
        assert (SOURCE / module).exists(), f"{module} is gone; take it out of TESTED_ELSEWHERE"
        assert (ROOT / test).exists(), f"{test}, which should test {module}, is gone"
        assert not mirror_of(SOURCE / module).exists(), (
            f"{module} has its own test file; take it out of TESTED_ELSEWHERE"
        )


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
        for test in re.findall(r"\btests/[a-z0-9_/]+(?:\.py)?", (ROOT / page).read_text())
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
