"""A view has what state has, and shells hold nothing else."""

import ast
from pathlib import Path
from typing import get_type_hints

from halfmq.core import view

SOURCE = Path(view.__file__).parents[1]
#: Packages that cannot import core, or are it.
BELOW = {"core", "store", "wire", "model", "runtime"}
#: Makes the state that the engine is given.
MAKES_STATE = {"recovery.py"}
MUTABLE = ("dict", "list", "set", "deque", "bytearray")


def test_nothing_of_a_view_can_be_assigned_or_changed() -> None:
    """mypy holds that the state has what a view names."""
    looked_at = 0
    for name, protocol in vars(view).items():
        if not name.endswith("View"):
            continue
        for field, declared in vars(protocol).items():
            if field.startswith("_"):
                continue
            assert isinstance(declared, property), f"{name}.{field} could be assigned"
            assert declared.fset is None, f"{name}.{field} could be assigned"
            returned = str(get_type_hints(declared.fget)["return"])
            assert not any(f"{kind}[" in returned for kind in MUTABLE), f"{name}.{field}: {returned}"
            looked_at += 1
    assert looked_at > 30


def test_no_shell_holds_the_state_itself() -> None:
    shells = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in BELOW]
    assert len(shells) > 100
    found = []
    for path in shells:
        source = path.read_text()
        if path.name in MAKES_STATE or not ("halfmq.core.state" in source or "engine" in source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module == "halfmq.core.state":
                found += [
                    f"{path.name} imports {one.name}"
                    for one in node.names
                    if one.name in ("State", "Topic", "ProducerGroup")
                ]
            if isinstance(node, ast.Attribute) and node.attr == "state" and ast.unparse(node.value).endswith("engine"):
                found.append(f"{path.name}:{node.lineno} reads {ast.unparse(node)}")
    assert found == []
