"""Possible moments of a crash: a script runs once, and before and after each of its disk operations the disk is forked.

A fork distinguishes synced and unsynced data, so one run is enough for every loss, which is chosen later, on the fork.
The fork is stored together with the book of the responses up to that moment.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import halfmq.store
from tests.crash_matrix.call_sites import Site
from tests.crash_matrix.house import Book, House, book_copy
from tests.crash_matrix.operations import Script, open_house
from tests.simulation.world import DATA
from tests.support.faulty_disk import FaultyDisk, Operation

_STORE = str(Path(halfmq.store.__file__).parent)
BEFORE, AFTER = "before", "after"
#: Not an operation of the disk: after the last one.
REST = "at rest"


class Point(NamedTuple):
    """``when``: before, after, or torn after this number of bytes of a write."""

    script: Script
    operation: Operation
    when: str
    disk: FaultyDisk
    book: Book
    now_ms: int
    site: Site | None
    #: High watermark for other processes.
    published: int

    @property
    def name(self) -> str:
        op = self.operation
        return f"{self.script.name}: {self.when} {op.kind} {op.path.name} ({op.at}, {op.length}), operation {op.number}"

    @property
    def kind(self) -> tuple[str, str]:
        """The disk operation, and before, after or torn."""
        return self.operation.kind, self.when.split()[0]


class _Recorder:
    """The observer of one run."""

    def __init__(self, script: Script, house: House, thorough: bool) -> None:
        self.points: list[Point] = []
        self._thorough = thorough
        self._script = script
        self._house = house
        self._copied: tuple[int, Book] = (-1, Book())
        self._last: FaultyDisk | None = None
        self._site: Site | None = None

    def before(self, operation: Operation) -> None:
        self._site = innermost_site()
        fork = self._last or self._house.disk.fork(operation.number)
        self._add(operation, BEFORE, fork)
        self._last = None

    def after(self, operation: Operation) -> None:
        disk = self._house.disk
        if operation.kind == "write" and operation.length > 1:
            data = disk.open(operation.path, writable=False).read(operation.at, operation.length)
            before = self.points[-1].disk
            for done in self._tears(operation.length):
                fork = before.fork(operation.number)
                fork.open(operation.path).write(operation.at, [data[:done]])
                self._add(operation, f"torn at {done}", fork)
        self._last = disk.fork(operation.number)
        self._add(operation, AFTER, self._last)

    def at_rest(self) -> None:
        """The script has ended and every response was sent: also a possible moment of a crash."""
        disk = self._house.disk
        self._site = None
        self._add(Operation(REST, DATA, 0, 0, disk.steps), AFTER, disk.fork(disk.steps))

    def _tears(self, length: int) -> list[int]:
        """Numbers of written bytes at which a write is cut. After the last byte that is not padding, a batch is complete."""
        middle = {length // 2, max(1, length - 8)}
        return sorted({1, *middle, length - 1} if self._thorough else middle)

    def _add(self, operation: Operation, when: str, fork: FaultyDisk) -> None:
        house = self._house
        if hasattr(house, "peer"):
            house.collect()
        if self._copied[0] != house.book.version:
            self._copied = (house.book.version, book_copy(house.book))
        published = house.published()
        self.points.append(
            Point(self._script, operation, when, fork, self._copied[1], house.clock.now_ms, self._site, published)
        )


def points_of(
    script: Script, *, thorough: bool = True, sync_is_a_lie: bool = False, eager: bool = False
) -> list[Point]:
    """Every point of the script, in order; ``thorough``: writes are cut at more places.

    The other two switches plant a bug, to show that it is found.
    """
    house = open_house(script)
    house.disk.sync_is_a_lie = sync_is_a_lie
    house.eager = eager
    script.before(house)
    recorder = _Recorder(script, house, thorough)
    return record(house, recorder, script)


def record(house: House, recorder: _Recorder, script: Script) -> list[Point]:
    house.disk.before, house.disk.after = recorder.before, recorder.after
    try:
        script.act(house)
    finally:
        house.disk.before = house.disk.after = None
    recorder.at_rest()
    return recorder.points


def points_of_start(script: Script, house: House) -> list[Point]:
    """The points of a start of ``house``: for a crash during a recovery."""
    return record(house, _Recorder(script, house, False), script._replace(act=House.start))


def innermost_site() -> Site | None:
    """The place in the store that requested the current operation; None: code outside the store."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_STORE):
            return Site(Path(code.co_filename).name, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None
