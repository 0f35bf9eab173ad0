"""The distributions in ``packages/`` import public names of halfmq only: they are released by themselves, and require a minor version."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import halfmq

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
#: Whose public names such a package may use: ``__all__`` of each.
PUBLIC = ("halfmq", "halfmq.sql", "halfmq.testing", "halfmq.integrations")
NAMES = {f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__}


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what is imported from halfmq."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "halfmq")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "halfmq" and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def private_names() -> set[str]:
    """Methods and properties of halfmq's public classes that are not public."""
    classes = [value for name in halfmq.__all__ if inspect.isclass(value := getattr(halfmq, name))]
    return {name for one in classes for name in vars(one) if name.startswith("_") and not name.startswith("__")}


def used(tree: ast.AST) -> Iterator[str]:
    """Attributes with a leading underscore of anything but ``self`` and ``cls``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not _is_self(node.value):
            yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_a_package_uses_public_names_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    others = sorted(set(imported(tree)) - NAMES)
    assert others == [], (
        f"public are the names of {', '.join(PUBLIC)}; what another package needs goes to halfmq.integrations"
    )
    assert sorted(set(used(tree)) & private_names()) == [], "what another package needs goes to halfmq.integrations"


def test_packages_and_their_imports_are_found() -> None:
    found = [name for path in FILES for name in imported(ast.parse(path.read_text()))]
    assert {"halfmq.Message", "halfmq.integrations.work"} <= set(found)
    assert "_join" in private_names()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from halfmq.client.message import Message", ["halfmq.client.message.Message"]),
        ("import halfmq.client", ["halfmq.client"]),
        ("if TYPE_CHECKING:\n    from halfmq.sql import Inbox as I", ["halfmq.sql.Inbox"]),
        ("from faststream_halfmq import x; from .halfmq import y", []),
    ],
)
def test_an_import_is_noticed_wherever_it_is(source: str, names: list[str]) -> None:
    assert list(imported(ast.parse(source))) == names


def test_a_private_method_is_noticed_unless_it_is_ones_own() -> None:
    assert list(used(ast.parse("self._join(); client._join; self._client._join()"))) == ["_join", "_join"]
