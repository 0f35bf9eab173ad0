"""A view has what state has, and shells hold nothing else."""

import ast
from pathlib import Path
from typing import get_type_hints

import pytest

from halfmq.core import view
from halfmq.core.state import ConsumerSession, Policy, ProducerGroup, State, Topic
from halfmq.model.settings import BrokerSettings, ProducerSettings

SETTINGS = BrokerSettings()
STATE = State(SETTINGS)
SOURCE = Path(view.__file__).parents[1]
#: Packages that cannot import core, or are it.
BELOW = {"core", "store", "wire", "model", "runtime"}
#: Makes the state that the engine is given.
MAKES_STATE = {"recovery.py"}


@pytest.mark.parametrize(
    ("protocol", "real"),
    [
        (view.View, STATE),
        (view.SessionView, STATE.session),
        (view.DerivedView, STATE.derived),
        (view.TopicView, Topic(SETTINGS, 1, "orders", 4, 4, 6)),
        (view.ProducerGroupView, ProducerGroup("PG", SETTINGS)),
        (view.PolicyView, Policy(ProducerSettings("PG"))),
        (view.ConsumersView, ConsumerSession()),
    ],
)
def test_what_a_view_names_is_there_and_cannot_be_assigned(protocol: type, real: object) -> None:
    names = [name for name in vars(protocol) if not name.startswith("_")]
    assert names
    for name in names:
        assert hasattr(real, name), name
        declared = vars(protocol)[name]
        assert isinstance(declared, property), f"{name} could be assigned"
        assert declared.fset is None, f"{name} could be assigned"


MUTABLE = ("dict", "list", "set", "deque", "bytearray")


@pytest.mark.parametrize("name", [name for name in vars(view) if name.endswith("View")])
def test_a_view_gives_nothing_that_can_be_changed(name: str) -> None:
    for field, declared in vars(getattr(view, name)).items():
        if isinstance(declared, property):
            returned = str(get_type_hints(declared.fget)["return"])
            assert not any(f"{kind}[" in returned for kind in MUTABLE), f"{name}.{field}: {returned}"


def test_no_shell_holds_the_state_itself() -> None:
    found = []
    shells = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in BELOW]
    assert len(shells) > 100
    for path in shells:
        if path.name in MAKES_STATE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "halfmq.core.state":
                found += [
                    f"{path.name} imports {one.name}"
                    for one in node.names
                    if one.name in ("State", "Topic", "ProducerGroup")
                ]
            if isinstance(node, ast.Attribute) and node.attr == "state" and ast.unparse(node.value).endswith("engine"):
                found.append(f"{path.name}:{node.lineno} reads {ast.unparse(node)}")
    assert found == []
