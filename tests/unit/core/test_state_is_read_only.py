"""No package above core can change the engine's state: mypy says so of each way to try it (``tests/support/state_is_read_only.py``)."""

from pathlib import Path
from typing import Final

import pytest
from mypy import api

ROOT: Final = Path(__file__).parents[3]
#: What a module outside of core may write, and what it may not: a line that ends with a mark is an error.
SHELL: Final = '''
from halfmq.core.apply import apply_all
from halfmq.core.copies import note_copy
from halfmq.core.engine import Engine
from halfmq.core.queues.offsets import query_offset
from halfmq.core.session import apply_session, DiskSpace
from halfmq.core.state import Member, ProducerGroup, Query, State, set_holders, take_turn
from halfmq.core.transaction.listing import transaction_state


def reads(engine: Engine, group: ProducerGroup) -> object:
    view = engine.state
    ends = [end for topic in view.topics_by_name.values() for end in topic.ends]
    newest = next(reversed(view.verdicts), None)
    view.session.published, group.session.members.get(1), sorted(view.derived.policies), newest
    return ends, query_offset(view, "G", "orders", 0), transaction_state(view, "G", "T"), Member("C", 1, "JAVA")


def changes(engine: Engine, group: ProducerGroup, query: Query) -> None:
    engine.state = State(engine.state.settings)  # E
    view = engine.state
    view.log_start = 0  # E
    view.log_end += 8  # E
    view.session.disk_full = True  # E
    view.derived.undecided_count -= 1  # E
    view.groups.clear()  # E
    view.groups["G"] = view.groups["H"]  # E
    del view.offsets["G"]  # E
    view.offsets["G"][1, 0] = 7  # E
    view.verdicts.popleft()  # E
    view.topics_by_name["orders"].ends[0] = 3  # E
    view.topics_by_name["orders"].session.round_robin_index = 3  # E
    view.topics_by_name["orders"].keep_queues(view.settings, 9)  # E
    view.producer_group("G")  # E
    group.undecided.pop("T")  # E
    group.session.due.append("T")  # E
    group.policy = None  # E
    query.decisions |= {}  # E
    copied: dict[str, ProducerGroup] = view.producer_groups  # E
    apply_all(view, ())  # E
    apply_session(view, DiskSpace(True))  # E
    set_holders(view, "G", {})  # E
    take_turn(view, group)  # E
    for known in group.undecided.values():
        note_copy(view, known.halves[0])  # E
'''  # fmt: skip


@pytest.mark.slow
def test_a_package_above_core_reads_the_state_and_cannot_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = tmp_path / "shell.py"
    shell.write_text(SHELL)
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    monkeypatch.chdir(ROOT)
    out, problems, _ = api.run(["--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache"), str(shell)])
    assert not problems
    found = {int(line.split(":")[1]) for line in out.splitlines() if "shell.py:" in line and " error: " in line}
    refused = {number for number, line in enumerate(SHELL.splitlines(), 1) if line.endswith("# E")}
    assert found == refused, out
