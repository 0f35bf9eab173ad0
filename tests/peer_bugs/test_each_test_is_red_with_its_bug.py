"""A test that cannot fail proves nothing: each is run with its bug put back, and must say what is wrong."""

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.peer_bugs.catalogue import BUGS, PeerBug
from tests.peer_bugs.plants import planted
from tests.support import waiting

CASES = [
    pytest.param(bug, plant, says, id=f"{bug.function.removeprefix('test_')}-{plant}")
    for bug in BUGS
    for plant, says in bug.plants
]


#: How long to wait for what the bug prevents, in seconds.
IN_VAIN_S = 1.0


def waits_in_vain_for(says: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test waits for, and the bug prevents, gets less patience; everything before it as much as ever."""

    async def until(condition: Callable[[], object], what: str) -> None:
        await waiting.until(condition, what, IN_VAIN_S if re.search(says, what) else waiting.PATIENCE_S)

    if hasattr(module, "until"):
        monkeypatch.setattr(module, "until", until)


@pytest.mark.parametrize(("bug", "plant", "says"), CASES)
def test_each_test_is_red_with_its_bug(
    bug: PeerBug, plant: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"tests.peer_bugs.{bug.module}")
    waits_in_vain_for(says, module, monkeypatch)
    body = getattr(module, bug.function)
    arguments = [tmp_path] if "tmp_path" in inspect.signature(body).parameters else []
    with planted(plant), pytest.raises(AssertionError, match=says):  # noqa: PT012 - either kind of test
        result = body(*arguments)
        if inspect.iscoroutine(result):
            asyncio.run(result)
