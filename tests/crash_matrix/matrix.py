"""Every point with every loss, or a part of them: restart, check, lose power again, check again, let clients retry, check everything."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from halfmq.store.store import Store
from tests.crash_matrix.call_sites import Site
from tests.crash_matrix.house import SEGMENT_BYTES, House, Violation, book_copy, config
from tests.crash_matrix.operations import Script
from tests.crash_matrix.points import REST, Point, points_of, points_of_start
from tests.crash_matrix.promises import check_answered, check_recoveries, check_settled
from tests.simulation.world import DATA, SeededEntropy
from tests.support.faulty_disk import FaultyDisk
from tests.support.hand_flush import HandFlush


class Loss(NamedTuple):
    """``keep``: fraction of unsynced data that survives a power loss; None: chosen at random by ``seed``. See ``FaultyDisk.crash``.

    ``first_name``: the first unsynced change of a name is lost, whatever else is kept. ``only_newest_name``: all but the last one are.
    """

    name: str
    power: bool
    keep: float | None = None
    seed: int = 0
    first_name: bool = False
    only_newest_name: bool = False


KILL = Loss("kill", power=False)
NOTHING_KEPT = Loss("power, nothing kept", power=True, keep=0.0)
ALL_KEPT = Loss("power, all kept", power=True, keep=1.0)
#: A disk may keep a later change and lose an earlier one: code that relies on their order must sync in between.
FIRST_NAME_LOST = Loss("power, a name lost", power=True, keep=1.0, first_name=True)
#: What the name refers to must have been synced before, and so must the names on which it depends.
NEWEST_NAME_KEPT = Loss("power, newest name", power=True, keep=0.0, only_newest_name=True)


def random_loss(seed: int) -> Loss:
    return Loss("power, at random", power=True, seed=seed)


#: For each run of the tests; ``python -m tests.crash_matrix`` uses more.
LOSSES = (KILL, NOTHING_KEPT, FIRST_NAME_LOST, NEWEST_NAME_KEPT, random_loss(1))


class Part(NamedTuple):
    """Every ``stride``-th case of each kind, and at least one. The ``offset`` decides which: all of them together are the whole.

    A kind is a disk operation of a script, and whether the crash is before, after or in the middle of it. A case is a point and a
    loss. The stride and the number of losses should have no common factor, so that a kind meets every loss.
    """

    stride: int = 1
    offset: int = 0

    def of(self, cases: Iterable[tuple[Point, Loss]]) -> list[tuple[Point, Loss]]:
        cases = list(cases)
        places: dict[str, list[int]] = {}
        for place, (point, _) in enumerate(cases):
            places.setdefault(f"{point.script.name}: {point.kind}", []).append(place)
        chosen: list[int] = []
        for kind, ones in places.items():
            begin = self.offset + crc32(kind.encode())  # elsewhere for each kind: else rare ones all meet the same loss
            chosen += ones[begin % min(self.stride, len(ones)) :: self.stride]
        return [cases[place] for place in sorted(chosen)]


WHOLE = Part()
#: Recovery cases of a log without a torn tail.
CLEAN = frozenset("AHJLNP")
#: Unless thorough, the state from the log alone is compared after every third crash.
_COMPARED = 3


class Result(NamedTuple):
    """``cases``: letters of the recovery cases, the second one after a crash during the first."""

    point: Point
    loss: Loss
    cases: str
    violation: str


class Row(NamedTuple):
    """A line of the table."""

    script: str
    kind: str
    when: str
    loss: str


class Tally:
    """Counts of what was run."""

    def __init__(self) -> None:
        self.rows: Counter[Row] = Counter()
        self.cases: dict[Row, Counter[str]] = {}
        self.runs: Counter[Row] = Counter()
        self.violations: list[str] = []
        self.violated: Counter[Row] = Counter()
        self.sites: set[Site] = set()
        self.operations: Counter[str] = Counter()
        self.second_level = 0

    def add(self, result: Result, *, fresh: bool) -> None:
        point = result.point
        row = Row(point.script.name, *point.kind, result.loss.name)
        self.rows[row] += 1
        self.runs[row] += fresh
        self.cases.setdefault(row, Counter())[result.cases] += 1
        if point.site is not None:
            self.sites.add(point.site)
        if result.violation:
            self.violated[row] += 1
            self.violations.append(f"{point.name}, {result.loss.name} {result.loss.seed}: {result.violation}")

    def merge(self, other: "Tally") -> None:
        self.rows += other.rows
        self.runs += other.runs
        self.violated += other.violated
        self.operations += other.operations
        for row, cases in other.cases.items():
            self.cases.setdefault(row, Counter()).update(cases)
        self.violations += other.violations
        self.sites |= other.sites
        self.second_level += other.second_level


def lost(point: Point, loss: Loss) -> FaultyDisk:
    """The disk of the point after the crash; if it was full, space is freed."""
    disk = point.disk.fork(point.operation.number * 1_000 + loss.seed)
    disk.heal()
    if loss.first_name:
        del disk._changes[:1]
    disk.crash(power=loss.power, keep=loss.keep, only_newest_name=loss.only_newest_name)
    return disk


def reopened(point: Point, disk: FaultyDisk) -> House:
    """A house on ``disk`` whose clients know what they knew at the point; not started."""
    return House(disk, book_copy(point.book), config(**point.script.settings), point.now_ms + 50)


def examine(point: Point, loss: Loss, disk: FaultyDisk, *, compare: bool = True) -> str:
    """Start on ``disk`` and check everything; returns the letter of the recovery case. ``compare``: also with the log alone.

    Raises:
        Violation: a promise does not hold.
    """
    house = reopened(point, disk)
    keeps_answers = point.script.survives_power_loss or not loss.power
    if not keeps_answers:
        house.book.forget_answers(house.knows_again)
    if compare:
        check_recoveries(house)
    house.start()
    letter = house.letter
    if point.script.survives_power_loss and house.recovered_end < point.published:
        raise Violation(f"readers read up to {point.published}, the log ends at {house.recovered_end}")
    check_answered(house)
    # Responses of this start, also about records only found on the disk, must hold if the power fails at once.
    second = House(disk.fork(1), book_copy(house.book), house.config, house.clock.now_ms + 50)
    second.disk.crash(power=point.script.survives_power_loss, keep=0.0)
    second.start()
    if second.letter not in CLEAN:
        raise Violation(f"what was cut in case {letter} was not cut for good: case {second.letter} follows")
    check_answered(second)
    check_settled(house)
    return letter


def letter_of(point: Point, loss: Loss) -> str:
    """The recovery case of a start; nothing else is checked."""
    store = Store.open(
        lost(point, loss),
        DATA,
        entropy=SeededEntropy(1),
        segment_bytes=SEGMENT_BYTES,
        make_syncer=HandFlush,
        reserve_bytes=0,
    )
    letter = store.recovery.case.letter
    store.close()
    return letter


def result_of(point: Point, loss: Loss, disk: FaultyDisk, *, compare: bool = True) -> Result:
    try:
        return Result(point, loss, examine(point, loss, disk, compare=compare), "")
    except Exception as error:  # whatever exception a start or a client meets, a crash must not lead to it
        return Result(point, loss, "-", f"{type(error).__name__}: {error}")


def cases_of(points: Iterable[Point], losses: Sequence[Loss] = LOSSES) -> Iterator[tuple[Point, Loss]]:
    return ((point, loss) for point in points for loss in losses)


def go_through(
    script: Script,
    losses: Sequence[Loss] = LOSSES,
    *,
    part: Part = WHOLE,
    thorough: bool = True,
    second_level: float = 0.0,
    sync_is_a_lie: bool = False,
    eager: bool = False,
) -> Tally:
    """Run all points of a script with all losses, or a part of that. Equal disks with equal clients are checked only once. What is read
    after a kill may still be lost, so a kill also covers a power loss that kept everything, but not vice versa.

    ``second_level``: fraction of the recoveries with another crash, at one random operation each.
    """
    tally = Tally()
    known: dict[tuple[bytes, int, int, bool], Result] = {}
    rng = random.Random(f"second level of {script.name}")
    points = points_of(script, thorough=thorough, sync_is_a_lie=sync_is_a_lie, eager=eager)
    tally.operations[script.name] = len({point.operation.number for point in points if point.operation.kind != REST})
    for point, loss in part.of(cases_of(points, losses)):
        disk = lost(point, loss)
        same = (disk.fingerprint(), point.book.version, point.now_ms)
        stands_for = known.get((*same, False)) if script.survives_power_loss else None
        before = stands_for or known.get((*same, loss.power))
        if before is not None:
            tally.add(before._replace(point=point, loss=loss), fresh=False)
            continue
        again = disk.fork(2) if rng.random() < second_level else None
        result = known[*same, loss.power] = result_of(
            point, loss, disk, compare=thorough or len(known) % _COMPARED == 0
        )
        tally.add(result, fresh=True)
        if again is not None and not result.violation:
            for second in _in_the_recovery(point, loss, again, rng):
                tally.second_level += 1
                tally.add(second._replace(cases=result.cases + second.cases), fresh=True)
    return tally


def _in_the_recovery(point: Point, first: Loss, disk: FaultyDisk, rng: random.Random) -> Iterator[Result]:
    """A crash at an operation of the start on ``disk``, which is the result of the ``first`` loss."""
    house = reopened(point, disk)
    if first.power and not point.script.survives_power_loss:
        house.book.forget_answers(
            house.knows_again
        )  # whatever happens next, the first loss may have removed the acknowledged records
    points = points_of_start(point.script._replace(name=f"{point.script.name}, in its recovery"), house)
    if not points:
        return
    chosen = rng.choice(points)
    for loss in (KILL, NOTHING_KEPT, NEWEST_NAME_KEPT, random_loss(rng.randrange(1 << 20))):
        yield result_of(chosen, loss, lost(chosen, loss))
