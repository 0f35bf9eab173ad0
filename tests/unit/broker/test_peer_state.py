"""Every container of the core and the broker is in the table of what peers can create, and the table is in the documents."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
import typer
from tests.support import peer_state_page

from halfmq import limits
from halfmq.broker.peer_state import NOT_SHARED, OF_THE_BROKER, OWN, SHARE, TABLE
from halfmq.cli import serve

SOURCE: Final = Path(__file__).parents[3] / "src" / "halfmq"
_CONTAINERS: Final = frozenset({
    "dict", "set", "list", "deque", "OrderedDict", "defaultdict", "Counter", "bytearray", "Dict", "Set", "List",
    "DictComp", "SetComp", "ListComp",
})  # fmt: skip
#: Module level: what grows there is a cache.
_CACHES: Final = frozenset({"Cached", "lru_cache"})


def called(value: ast.expr | None) -> str:
    """The name of the type that ``value`` makes: of a literal, a call, or a call of a call."""
    if isinstance(value, ast.Call):
        function = value.func
        while isinstance(function, ast.Subscript | ast.Call):
            function = function.value if isinstance(function, ast.Subscript) else function.func
        return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return type(value).__name__


def is_container(statement: ast.Assign | ast.AnnAssign) -> bool:
    """Whether it assigns a container that can grow."""
    if called(statement.value) in _CONTAINERS:
        return True
    said = ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else ""
    return said.removeprefix("Final[").partition("[")[0].rpartition(".")[2] in _CONTAINERS


def target(statement: ast.stmt) -> tuple[ast.Assign | ast.AnnAssign, ast.expr] | None:
    if isinstance(statement, ast.AnnAssign):
        return statement, statement.target
    if isinstance(statement, ast.Assign):
        return statement, statement.targets[0]
    return None


def containers(module: str, tree: ast.Module, *, caches_only: bool = False) -> Iterator[str]:
    """``module:Class.attribute`` of what constructors make, and ``module:name`` of caches."""
    for node in tree.body:
        found = target(node)
        if found is not None and called(found[0].value) in _CACHES:
            yield f"{module}:{ast.unparse(found[1])}"
        if not isinstance(node, ast.ClassDef) or caches_only:
            continue
        for function in node.body:
            if not isinstance(function, ast.FunctionDef) or function.name != "__init__":
                continue
            for statement in ast.walk(function):
                made = target(statement) if isinstance(statement, ast.stmt) else None
                if made is not None and ast.unparse(made[1]).startswith("self.") and is_container(made[0]):
                    yield f"{module}:{node.name}.{ast.unparse(made[1]).removeprefix('self.')}"


def in_the_code() -> set[str]:
    found: set[str] = set()
    for package in ("core", "broker", "runtime", "model", "wire", "store"):
        for path in (SOURCE / package).rglob("*.py"):
            module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            found |= set(
                containers(
                    module, ast.parse(path.read_text()), caches_only=package not in ("core", "broker", "runtime")
                )
            )
    return found


def test_every_container_has_a_row_or_is_of_the_broker() -> None:
    """A new one needs an answer to: who pays, what is its maximum, how does it go away (``broker.peer_state``)?"""
    listed = [name for row in TABLE for name in row.held_in]
    assert len(set(listed)) == len(listed), "each in one row"
    assert not OF_THE_BROKER & set(listed)
    found = in_the_code()
    assert len(found) > 80
    assert found - set(listed) - OF_THE_BROKER == set(), "without a row"
    assert (set(listed) | OF_THE_BROKER) - found == set(), "with a row, and gone from the code"


def test_rows_answer_every_question() -> None:
    for row in TABLE:
        assert row.pays
        assert row.most
        assert row.goes
        assert row.held_in
        assert row.one.startswith((SHARE, OWN, NOT_SHARED)), row.what
        assert row.one.startswith(SHARE) or len(row.one) > len(NOT_SHARED), (
            f"{row.what}: what does that mean to others?"
        )


#: Rules of the core about state that others hold.
_RULES: Final = {
    "undecided transaction": "core.transaction.admission", "producer group": "core.transaction.admission",
    "queue lock": "core.queues.ordering",
}  # fmt: skip
#: Without a container.
_COUNTERS: Final = frozenset({"broker.services.settled_verdict_lookup"})


def test_what_one_has_three_quarters_of_is_so_in_the_code_and_the_reverse() -> None:
    """A row says it, and a module of it computes it; and each module that does is of such a row."""
    computing = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "import share_of" in text or ("import Shares" in text and "Shares(" in text):
            computing.add(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    computing -= {"broker.peers.shares"}
    assert len(computing) > 12
    left = computing - _COUNTERS
    for row in TABLE:
        modules = {name.partition(":")[0] for name in row.held_in} | {_RULES.get(row.what, "")}
        if row.one.startswith(SHARE):
            assert modules & computing, row.what
            left -= modules
    assert left == set(), "no row says that one has three quarters"


def test_a_maximum_names_limits_that_the_code_has() -> None:
    options = {option for one in typer.main.get_command(serve.app).params for option in one.opts}
    looked_at = 0
    for row in TABLE:
        modules = [limits, *[import_module(f"halfmq.{name.partition(':')[0]}") for name in row.held_in]]
        for name in re.findall(r"`([^` ]+)`", f"{row.most} {row.one}"):
            exists = name in options if name.startswith("--") else any(hasattr(module, name) for module in modules)
            assert exists, f"{row.what}: {name}"
            looked_at += 1
    assert looked_at > 25


@pytest.mark.parametrize(
    ("made", "is_one"),
    [
        ("self.a: dict[str, int] = {}", True),
        ("self.a = deque[int](maxlen=3)", True),
        ("self.a: set[str] | None = None", True),
        ("self.a = [None] * 3", False),
        ("self.a = [1 for _ in range(3)]", True),
        ("self.a = collections.OrderedDict()", True),
        ("self.a: Final[list[int]] = make()", True),
        ("self.a: tuple[int, ...] = ()", False),
        ("self.a = number", False),
    ],
)
def test_containers_are_recognised(made: str, is_one: bool) -> None:
    tree = ast.parse(f"class C:\n    def __init__(self):\n        if True:\n            {made}\n")
    assert list(containers("m", tree)) == (["m:C.a"] if is_one else [])


def test_page_shows_the_table() -> None:
    text = peer_state_page.PAGE.read_text()
    assert text == peer_state_page.with_table(text), "run: python -m tests.support.peer_state_page"
