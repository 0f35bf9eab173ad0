"""Coverage of the seeds: which fault met which state of a transaction, and which recovery case followed.

A possible cell that stays empty is a bug of ``swarm``: its settings never lead there.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

#: States of transactions when a fault occurs.
STATES: Final = (
    "none", "halves partly stored", "undecided", "parked", "not durable", "check in flight", "committed", "rolled back",
    "past retention", "batch undecided", "batch copied", "segments tied",
)  # fmt: skip
#: Faults that end the broker, followed by a recovery.
ENDING: Final = (
    "kill", "kill_in_step", "power", "power_in_step", "drain", "write_error", "sync_error", "derived_lost", "segment_lost",
    "rot_at_rest",
)  # fmt: skip
_REFUSED: Final = "refused"
#: Recovery cases that a start can reach here. The others cannot be seen: B to G refuse (``refused``), and P and Q need a
#: checkpoint older than the log's start, for which a trim waits.
CASES: Final = ("A", "H", "I", "J", "K", "L", "M", "N", "O", _REFUSED)
#: Impossible (fault, state) pairs.
IMPOSSIBLE: Final = frozenset({("rot", "none"), ("rot_at_rest", "none")})


def states_of(state: Any, durable: int, first_verdict: int) -> list[str]:
    """Which of ``STATES`` some transaction of the broker is in. ``first_verdict``: log position of the first verdict ever."""
    found = []
    groups = state.producer_groups.values()
    undecided = [known for group in groups for known in group.undecided.values()]
    if any(known.count != len(known.halves) for known in undecided):
        found.append("halves partly stored")
    aside = sum(known.parked is not None for known in undecided)
    if aside:
        found.append("parked")
    if any(known.count == len(known.halves) for known in undecided):
        found.append("undecided")
    if any(group.session.in_flight for group in groups):
        found.append("check in flight")
    verdicts = state.verdicts
    if verdicts:
        if verdicts[-1].position >= durable:
            found.append("not durable")
        if any(verdict.committed for verdict in verdicts):
            found.append("committed")
        if not all(verdict.committed for verdict in verdicts):
            found.append("rolled back")
    if first_verdict < state.log_start:
        found.append("past retention")
    batches = [half for known in undecided for half in known.halves if half.batch is not None]
    if batches:
        found.append("batch undecided")
    if any(half.offset != half.first_offset for half in batches):
        found.append("batch copied")
    if state.ties:
        found.append("segments tied")
    return found or ["none"]


class Coverage:
    """Counts ``cover <fault> | <state> | <recovery case>`` in the counts of the run."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._waiting: list[tuple[str, list[str]]] = []

    def fault(self, what: str, states: list[str]) -> None:
        if what in ENDING:
            self._waiting.append((what, states))
        else:
            self._count(what, states, "-")

    def recovered(self, letter: str) -> None:
        for what, states in self._waiting:
            self._count(what, states, letter)
        self._waiting.clear()

    def refused(self) -> None:
        for what, states in self._waiting:
            self._count(what, states, _REFUSED)

    def _count(self, what: str, states: list[str], letter: str) -> None:
        for state in states:
            self._counts[f"cover {what} | {state} | {letter}"] += 1


def table(counts: Mapping[str, int]) -> str:
    """Two tables: fault by state, and fault by recovery case, with the states in which a recovery case never occurred."""
    cells: Counter[tuple[str, str, str]] = Counter()
    for name, count in counts.items():
        if name.startswith("cover "):
            fault, state, letter = name.removeprefix("cover ").split(" | ")
            cells[fault, state, letter] += count
    faults = sorted({fault for fault, _, _ in cells})
    letters = sorted({letter for _, _, letter in cells})
    lines = ["fault by state of transactions at that moment", _row("", STATES)]
    lines += [_row(fault, [_sum(cells, fault, state, None) for state in STATES]) for fault in faults]
    lines += ["", "fault by recovery case", _row("", letters)]
    lines += [_row(fault, [_sum(cells, fault, None, letter) for letter in letters]) for fault in faults]
    lines += ["", "state by recovery case", _row("", letters)]
    lines += [_row(state, [_sum(cells, None, state, letter) for letter in letters]) for state in STATES]
    return "\n".join(lines)


def empty_cells(counts: Mapping[str, int]) -> list[str]:
    """Possible cells that were never reached."""
    cells = [name.removeprefix("cover ").split(" | ") for name in counts if name.startswith("cover ")]
    met = {(fault, state) for fault, state, _ in cells}
    recovered = {letter for _, _, letter in cells}
    after = {(state, letter) for fault, state, letter in cells if fault in ENDING}
    faults = sorted({fault for fault, _ in met})
    empty = [f"{fault} while {state}" for fault in faults for state in STATES if (fault, state) not in met]
    empty = [cell for cell in empty if tuple(cell.split(" while ")) not in IMPOSSIBLE]
    empty += [f"recovery {letter}" for letter in CASES[1:] if letter not in recovered]
    empty += [
        f"{state}, then {letter}"
        for state in STATES[1:]
        for letter in ("H", "L", "M", "N")
        if (state, letter) not in after
    ]
    return empty


def _sum(cells: Counter[tuple[str, str, str]], fault: str | None, state: str | None, letter: str | None) -> int:
    return sum(
        count
        for (one, two, three), count in cells.items()
        if fault in (None, one) and state in (None, two) and letter in (None, three)
    )


def _row(head: str, cells: Any) -> str:
    return f"{head:<22}" + "".join(f"{str(cell)[:9]:>10}" for cell in cells)
