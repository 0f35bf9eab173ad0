"""Do the witnesses agree? What the services know, what a consumer saw over the wire, and what the log holds.

Each look gives faults as sentences that begin with the broken promise: ``lost``, ``twice``, ``torn``, ``shown`` (rolled
back and visible), ``undecided``, ``strange``. No fault: an empty list. ``test_witnesses`` plants each of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.crash.recorder import COMMIT, tag_of, verdict_of


class Told(NamedTuple):
    """What the services recorded. ``begun``: messages by transaction; the others: position by transaction."""

    begun: dict[str, int]
    committed: dict[str, int]
    rolled_back: dict[str, int]


class Seen(NamedTuple):
    """What came over the wire: how often each unique id was seen, in which place, and what a watcher must never see."""

    times: Counter[str]
    places: dict[str, tuple[str, int, int]]
    strange: list[str]


def read_told(lines: Iterable[str]) -> Told:
    told = Told({}, {}, {})
    for line in lines:
        kind, tx_id, *number = line.split()
        if kind == "B":
            told.begun[tx_id] = int(number[0])
        elif kind == "C":
            told.committed[tx_id] = int(number[0])
        elif kind == "R":
            told.rolled_back[tx_id] = int(number[0])
    return told


def read_seen(lines: Iterable[str]) -> Seen:
    seen = Seen(Counter(), {}, [])
    for line in lines:
        fields = line.split()
        if fields[0] in ("GAP", "REFUSED"):
            seen.strange.append(line)
        else:
            topic, queue, offset, unique = fields[:4]
            seen.times[unique] += 1
            seen.places[unique] = (topic, int(queue), int(offset))
    return seen


def wire_faults(told: Told, seen: Seen) -> list[str]:
    """Every transaction is settled when this is asked: what must be visible is known for each that was begun."""
    return [*_on_the_wire(told, seen)]


def _on_the_wire(told: Told, seen: Seen) -> Iterator[str]:
    for line in seen.strange:
        yield f"strange: the watcher was told {line}"
    for tx_id in told.committed.keys() | told.rolled_back.keys():
        if (tx_id in told.committed, tx_id in told.rolled_back) != _truth(tx_id):
            yield f"strange: {tx_id} was acknowledged with a verdict that is not the true one, or with two"
    for tx_id, count in told.begun.items():
        ids = [f"{tx_id}.{index}" for index in range(count)]
        there = sum(unique in seen.times for unique in ids)
        if verdict_of(tx_id) != COMMIT:
            if there:
                yield f"shown: {there} messages of {tx_id}, which rolled back"
        elif there == 0:
            acknowledged = "acknowledged" if tx_id in told.committed else "settled without an answer"
            yield f"lost: all {count} messages of {tx_id}, committed and {acknowledged}"
        elif there < count:
            yield f"torn: {there} of {count} messages of {tx_id}"
    for unique, times in seen.times.items():
        if times > 1:
            yield f"twice: {unique} was seen {times} times"
        tx_id, _, index = unique.rpartition(".")
        if int(index) >= told.begun.get(tx_id, 0):
            yield f"strange: {unique} was seen, nobody sent it"


def tag_faults(seen: Seen, by_tag: Seen, tag: str) -> list[str]:
    """What a watcher that asked for ``tag`` saw, held against what another one saw of everything."""
    faults = [f"strange: the watcher of {tag} was told {line}" for line in by_tag.strange]
    wanted = {unique for unique in seen.times if tag_of(unique) == tag}
    faults += [
        f"lost: {unique} has the tag {tag}, and who asked for it did not see it"
        for unique in wanted - by_tag.times.keys()
    ]
    faults += [f"strange: {unique} was seen by who asked for {tag}" for unique in by_tag.times.keys() - wanted]
    return faults + [f"twice: {unique} was seen {times} times" for unique, times in by_tag.times.items() if times > 1]


def _truth(tx_id: str) -> tuple[bool, bool]:
    committed = verdict_of(tx_id) == COMMIT
    return committed, not committed


class Log:
    """What is still retained, record by record as ``store dump`` gives them. Take all, then ask for ``faults``."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self.kinds: Counter[str] = Counter()
        self._start = -1
        self._faults: list[str] = []
        self._halves: Counter[tuple[str, int]] = Counter()
        self._verdicts: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._places: Counter[tuple[int, int, int]] = Counter()

    def take(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        self.kinds[kind] += 1
        if self._start < 0:
            self._start = record["offset"]
        if kind == "half":
            self._halves[record["tx_id"], record["index"]] += 1
        elif kind in ("committed", "rolled_back"):
            self._verdicts[record["tx_id"]].append((kind, record["offset"]))
            if kind == "committed":
                self._take_commit(record["tx_id"], record["refs"])

    def _take_commit(self, tx_id: str, refs: list[dict[str, int]]) -> None:
        count = self._told.begun.get(tx_id, 0)
        if len({ref["half_index"] for ref in refs}) != count or len(refs) != count:
            self._faults.append(f"torn: the commit of {tx_id} has {len(refs)} of {count} messages")
        if verdict_of(tx_id) != COMMIT:
            self._faults.append(f"shown: {tx_id} is committed in the log, it rolled back")
        self._places.update((ref["topic_id"], ref["queue_id"], ref["queue_offset"]) for ref in refs)

    def faults(self) -> list[str]:
        return [*self._faults, *self._twice(), *self._against_what_was_told()]

    def _twice(self) -> Iterator[str]:
        for (tx_id, index), times in self._halves.items():
            if times > 1:
                yield f"twice: half {index} of {tx_id} is {times} times in the log"
        for tx_id, verdicts in self._verdicts.items():
            if len(verdicts) > 1:
                yield f"twice: {tx_id} has {len(verdicts)} verdicts in the log: {verdicts}"
        for place, times in self._places.items():
            if times > 1:
                yield f"twice: {times} commits take (topic, queue, offset) {place}"

    def _against_what_was_told(self) -> Iterator[str]:
        for kind, acknowledged in (("committed", self._told.committed), ("rolled_back", self._told.rolled_back)):
            for tx_id, position in acknowledged.items():
                # What lies before the log's start was trimmed; the wire has seen it.
                if position >= self._start and (kind, position) not in self._verdicts.get(tx_id, []):
                    found = self._verdicts.get(tx_id, "nothing")
                    yield f"lost: {tx_id} was acknowledged as {kind} at {position}; the log has {found}"
        for tx_id, verdicts in self._verdicts.items():
            if verdicts[0][0] == "rolled_back" and verdict_of(tx_id) == COMMIT:
                yield f"lost: {tx_id} is rolled back in the log, it committed"
        for tx_id in {tx_id for tx_id, _ in self._halves}:
            if tx_id not in self._verdicts:
                yield f"undecided: {tx_id} has no verdict behind its halves"
