"""A test that cannot fail proves nothing: each is run with its bug put back, and must say what is wrong."""

import asyncio
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.peer_bugs import services
from tests.peer_bugs.catalogue import BUGS, PeerBug
from tests.peer_bugs.plants import planted

CASES = [
    pytest.param(bug, plant, says, id=f"{bug.function.removeprefix('test_')}-{plant}")
    for bug in BUGS
    for plant, says in bug.plants
]


def body_of(bug: PeerBug) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"tests.peer_bugs.{bug.module}"), bug.function)


@pytest.mark.parametrize(("bug", "plant", "says"), CASES)
def test_each_test_is_red_with_its_bug(
    bug: PeerBug, plant: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "PATIENCE_S", 1.0)
    body = body_of(bug)
    arguments = [tmp_path] if "tmp_path" in inspect.signature(body).parameters else []
    with planted(plant), pytest.raises(AssertionError, match=says):  # noqa: PT012 - either kind of test
        result = body(*arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
