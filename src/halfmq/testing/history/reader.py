"""Reads histories from files, directories or memory, one block of events at a time.

An event is identified by its *place*: number of the source and line number in one integer, which keeps rows small.
``Sources.event`` loads the line when a violation is reported.

A killed process may leave a torn line at the end of its file; after its restart it continues with a new ``began``. A torn line
was never acted on, so it is ignored and counted. Any other unreadable line makes the file unusable.
"""

import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from halfmq.errors import UsageError
from halfmq.testing.history.events import FORMAT, AnyEvent, FileStarted

#: Bytes read at once: some 5,000 events.
BLOCK_BYTES: Final = 1 << 20
#: A longer line is not an event.
LINE_BYTES_MAX: Final = 64 << 20
#: A place is ``source << PLACE_BITS | line``, lines from 1.
PLACE_BITS: Final = 40
_LINE_MASK: Final = (1 << PLACE_BITS) - 1

#: Exceptions of the decoder for bytes that are not an event.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder = msgspec.json.Decoder(AnyEvent)
_encode = msgspec.json.Encoder().encode


class Block(NamedTuple):
    """``events`` at consecutive lines from ``line``. ``size``: bytes, or what they would be in a file."""

    line: int
    events: list[AnyEvent]
    size: int


class Source(Protocol):
    """A source of events. ``torn``: number of torn lines, final after all blocks were read."""

    name: str
    size: int
    torn: int
    #: Whether this is the log of the store ``name``: violations then name log offsets, not lines.
    is_log: bool

    def blocks(self) -> Iterator[Block]:
        """All events in order. Call it once."""
        ...

    def line(self, number: int) -> str:
        """The text of a line that was read before, from 1."""
        ...


class FileSource:
    """One file of lines.

    ``blocks`` raises UsageError for a file that is no history, of another format, or damaged; with the line.
    ``log_of``: the store whose log was written to this file (``logged.write_log``); violations name it.

    Raises:
        UsageError: no such file, or no regular file: lines are read again to show violations.
    """

    def __init__(self, path: Path, *, log_of: Path | None = None) -> None:
        self.path = path
        self.name = str(path if log_of is None else log_of)
        self.is_log = log_of is not None
        try:
            found = path.stat()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(
                f"{path}: not a regular file", hint="lines are read again to show violations; use a regular file"
            )
        self.size = found.st_size
        self.torn = 0
        #: (first line, byte offset) of each block read.
        self._index: list[tuple[int, int]] = []
        #: First line, and the lines, of the block that was read last: violations are often close together.
        self._kept: tuple[int, list[bytes]] = (0, [])
        self._begun = False
        #: The previous line was unreadable: its number, and why.
        self._torn_at: tuple[int, str] | None = None

    def blocks(self) -> Iterator[Block]:
        """All events in order. Call it once."""
        line, at, rest = 1, 0, b""
        try:
            file = self.path.open("rb", buffering=0)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}") from error
        with file:
            while True:
                data = file.read(BLOCK_BYTES)
                if not data:
                    break
                whole, newline, tail = data.rpartition(b"\n")
                if not newline:
                    rest += data
                    if len(rest) > LINE_BYTES_MAX:
                        raise UsageError(f"{self.path}:{line}: no line end in {LINE_BYTES_MAX:,} bytes; not a history")
                    continue
                block = rest + whole + b"\n" if rest else whole + b"\n"
                self._index.append((line, at))
                lines = block.count(b"\n")
                yield from self._decode(block, line)
                at += len(block)
                line += lines
                rest = tail
        if rest:  # a process was killed in this line, or just before its line end
            yield from self._decode(rest + b"\n", line)
            self._index.append((line, at))
        elif self._torn_at is not None:
            raise self._not_an_event()
        if self._torn_at is not None:
            self.torn += 1

    def _not_an_event(self) -> UsageError:
        assert self._torn_at is not None
        return UsageError(
            f"{self.path}:{self._torn_at[0]}: not an event: {self._torn_at[1]}",
            hint="only a last line without its end, or one before a `began`, may be torn",
        )

    def _decode(self, block: bytes, line: int) -> Iterator[Block]:
        try:
            events = _decoder.decode_lines(block)
        except _UNREADABLE:
            events = []
        if len(events) != block.count(b"\n"):  # empty lines are skipped by the decoder, and would shift the places
            yield from self._decode_one_by_one(block, line)
            return
        self._check(line, events[0])
        yield Block(line, events, len(block))

    def _decode_one_by_one(self, block: bytes, line: int) -> Iterator[Block]:
        """An unreadable line is torn if nothing follows, or the ``began`` of a restarted process."""
        for number, text in enumerate(block.split(b"\n")[:-1], line):
            if not text:
                continue
            try:
                event = _decoder.decode(text)
            except RecursionError as error:  # torn or not, no recorder writes this
                raise UsageError(f"{self.path}:{number}: not an event: {error}") from error
            except _UNREADABLE as error:
                self._check(number, None)
                self._torn_at = (number, str(error))
                continue
            self._check(number, event)
            yield Block(number, [event], len(text) + 1)

    def _check(self, line: int, event: AnyEvent | None) -> None:
        """Check that ``event`` (None: an unreadable line) is legal at ``line``."""
        if self._torn_at is not None:
            if type(event) is not FileStarted:
                raise self._not_an_event()
            self.torn += 1
            self._torn_at = None
        if event is not None and not self._begun:
            self._check_first(event)
            self._begun = True

    def _check_first(self, event: AnyEvent) -> None:
        if type(event) is not FileStarted:
            raise UsageError(f"{self.path}: the first line must be a `began`; is this a history?")
        if event.format != FORMAT:
            raise UsageError(f"{self.path}: format {event.format}; this program reads format {FORMAT}")

    def line(self, number: int) -> str:
        """The text of a line that was read before."""
        first, at = self._index[bisect_right(self._index, (number, 1 << 62)) - 1]
        if self._kept[0] != first:
            with self.path.open("rb") as file:
                file.seek(at)
                ends = [entry for _, entry in self._index[bisect_right(self._index, (first, at)) :]]
                self._kept = (first, file.read(ends[0] - at if ends else -1).split(b"\n"))
        return self._kept[1][number - first].decode(errors="replace")


class EventsSource:
    """Events in memory."""

    #: A rough size of a line, for the memory budget.
    _BYTES: Final = 200
    _AT_ONCE: Final = 5_000

    is_log = False

    def __init__(self, events: Sequence[AnyEvent], name: str = "memory") -> None:
        self.name = name
        self.size = len(events) * self._BYTES
        self.torn = 0
        self._events = events

    def blocks(self) -> Iterator[Block]:
        for at in range(0, len(self._events), self._AT_ONCE):
            events = list(self._events[at : at + self._AT_ONCE])
            yield Block(at + 1, events, len(events) * self._BYTES)

    def line(self, number: int) -> str:
        return _encode(self._events[number - 1]).decode()


class Sources:
    """All sources of one history, and access to their events by place."""

    def __init__(self) -> None:
        self._all: list[Source] = []

    def add(self, source: Source) -> int:
        """Add a source. Returns the place before its first line."""
        self._all.append(source)
        return (len(self._all) - 1) << PLACE_BITS

    def name_and_line(self, place: int) -> tuple[str, int]:
        """The source's name and the line number of a place."""
        return self._all[place >> PLACE_BITS].name, place & _LINE_MASK

    def is_log(self, place: int) -> bool:
        """Whether the place is in a store's log."""
        return self._all[place >> PLACE_BITS].is_log

    def event(self, place: int) -> tuple[AnyEvent, str]:
        """The event at a place, and the text of its line."""
        text = self._all[place >> PLACE_BITS].line(place & _LINE_MASK)
        return _decoder.decode(text), text

    @property
    def torn(self) -> int:
        """The number of torn lines in all sources."""
        return sum(source.torn for source in self._all)


def files_of(paths: Sequence[Path]) -> list[FileSource]:
    """A source for each file, and for each ``*.jsonl`` file of each directory.

    Raises:
        UsageError: a path does not exist, or a directory has no such file.
    """
    found: list[FileSource] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.jsonl"))
            if not inside:
                raise UsageError(f"{path} has no *.jsonl files")
            found += [FileSource(one) for one in inside]
        else:
            found.append(FileSource(path))
    return found
