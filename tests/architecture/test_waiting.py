"""No test depends on the pace of the machine: it waits for a condition, with patience, or moves the clock (``tests.support.waiting``).

Found are sleeps in real time (``asyncio.sleep``, ``time.sleep``), and waits that give up so early that a slow machine makes the test red,
or that are meant to: ``asyncio.wait_for(x, 0.2)``, ``asyncio.timeout(5)``, ``event.wait(2)``, ``thread.join(5)``, ``future.result(1)``.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Says on the line why it takes real time: it is the pace of a load, or imitates work of the given length.
REASON = "# real time: "
#: A sleep this long never ends by itself: the test cancels it, or kills who sleeps.
ENDLESS_S = 30
#: What comes at all comes within this time, on any machine.
PATIENT_S = 20
#: The shared waiting itself; programs that make load at a pace of their own; and the simulation, whose time is virtual throughout.
EXEMPT = ("support/waiting.py", "run.py", "bench/", "soak/", "attack/", "simulation/", "compat/stock_history.py")


def impatient(source: str) -> list[int]:
    """Line numbers of sleeps and of short waits in real time without a reason."""
    lines = source.splitlines()
    found: list[int] = []

    def visit(node: ast.AST, is_virtual: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A test says itself that its time is virtual; other functions of such a module run in the time of its tests.
            is_virtual = is_virtual and (not node.name.startswith("test_") or _runs_virtually(node))
        if isinstance(node, ast.Call) and _is_impatient(node, is_virtual) and REASON not in lines[node.lineno - 1]:
            found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, is_virtual)

    visit(ast.parse(source), "tests.support.virtual_time" in source)
    return found


def _runs_virtually(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Of a module that imports ``tests.support.virtual_time``: decorated with ``in_virtual_time``, or calls its ``run``."""
    calls = {ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)}
    return "in_virtual_time" in {ast.unparse(one) for one in test.decorator_list} or "run" in calls


def _is_impatient(call: ast.Call, is_virtual: bool) -> bool:
    name = ast.unparse(call.func)
    if name == "time.sleep" or (name == "asyncio.sleep" and not is_virtual):
        seconds = _seconds(call, 0)
        return seconds is None or 0 < seconds < ENDLESS_S
    if is_virtual:
        return False
    if name == "asyncio.wait_for":
        return 0 < (_seconds(call, 1) or 0) < PATIENT_S
    if name == "asyncio.timeout" or name.endswith((".wait", ".join", ".result")):
        return 0 < (_seconds(call, 0) or 0) < PATIENT_S
    return False


def _seconds(call: ast.Call, position: int) -> float | None:
    """None: not a number that stands there."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"] or call.args[
        position : position + 1
    ]
    match given:
        case [ast.Constant(int() | float() as seconds)]:
            return seconds
    return None


def test_no_test_depends_on_the_pace_of_the_machine() -> None:
    files = [path for path in sorted(TESTS.rglob("*.py")) if not str(path.relative_to(TESTS)).startswith(EXEMPT)]
    assert len(files) > 200
    found = [f"{path.relative_to(TESTS.parent)}:{line}" for path in files for line in impatient(path.read_text())]
    assert not found, f"wait for a condition (tests/support/waiting.py), or say '{REASON}...': {found}"


def test_what_does_is_noticed() -> None:
    assert impatient("import time\ntime.sleep(0.1)\ntime.sleep(pause)\n") == [2, 3]
    assert impatient("time.sleep(0)\ntime.sleep(60)\ntime.sleep(0.1)  # real time: the pace of the load\n") == []
    assert impatient("await asyncio.wait_for(x, 2)\nasyncio.timeout(5)\nevent.wait(1)\nthread.join(timeout=0.2)\n") == [
        1,
        2,
        3,
        4,
    ]
    assert impatient("await asyncio.wait_for(x, 60)\nevent.wait()\nevent.wait(PATIENCE_S)\n','.join(x)\n") == []
    virtual = "from tests.support.virtual_time import in_virtual_time\n"
    test = "async def test_it():\n    await asyncio.sleep(1)\n"
    assert impatient(f"{virtual}@in_virtual_time\n{test}") == []
    assert impatient(virtual + test) == [3]
    assert (
        impatient(f"{virtual}def test_it():\n    async def test():\n        await asyncio.sleep(1)\n    run(test())\n")
        == []
    )
    assert impatient(f"{virtual}async def helper():\n    await asyncio.sleep(1)\n    time.sleep(1)\n") == [4]
