"""What the sink and the jobs need of Spark's checkpoint: that it survives a power loss, and what a batch of a stream is made of, with a
digest.

    metadata      {"id": ...}: the id of the query
    offsets/N     version, a line about the batch (times, settings), then one line for each place of a source in the plan: where it ends
                  in batch N, or "-". Batch N begins where these lines of offsets/N-1 end
    sources/I/K   what a source writes about itself: I is its number, or its name
    commits/N     batch N is over

Spark writes these files without fsync. If the broker makes batch N visible and then its input is lost, the next run would put
other rows into batch N. So they are synced before a decision. The digest of the input tells the broker whether a batch that comes
again is the same. Only directories of the driver's machine (or mounted there) are supported.

A line is not always enough to say which rows they are; ``KINDS`` says for each source what else is needed. Lines do not say of which
source they are, so a kind is recognised by its form.

Directories have numbers of sources, which need not be those of lines. Then there is a digest for each way in which lines and directories
may belong together, the likely one first, by which a batch is decided: docs/decisions/0057-input-of-a-batch.md.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from halfmq.errors import EnvironmentFailed, UsageError
from halfmq.wire.remoting.half_batches import DIGEST_BYTES

#: Lines of offsets/N before those of the sources: the version, and times and settings, which differ between runs of a batch.
_LINES_BEFORE_SOURCES: Final = 2
#: The line of a source without any data yet.
_NO_OFFSET: Final = "-"
_DELTA: Final = frozenset({"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"})
_ENTRY: Final = frozenset({"path", "timestamp", "batchId"})
_NUMBER: Final = re.compile(r'"batchId"\s*:\s*(\d+)', re.ASCII)
#: Ways to assign lines to directories that are considered, the likely ones. A plan without a source that occurs again has one.
_WAYS_MAX: Final = 100
#: Numbers of lines with more digits are names.
_NUMBER_CHARS_MAX: Final = 3
#: Newest files of a directory that are examined for what kind of source it is of.
_EXAMINED_MAX: Final = 5
_RESTORE: Final = "restore offsets and sources of the checkpoint; without them use a new checkpoint and a new output"


class Evidence(Enum):
    """What, beside the lines where a batch begins and ends, identifies its rows."""

    LINES = "nothing: the lines name the content"
    FILE_LOG = "the entries of sources/I between the lines: path and modification time of each file"
    FIRST_FILE = "sources/I/0: where the source began"
    NONE = "nothing identifies them"


class Kind(NamedTuple):
    """A kind of source. ``has_form``: whether a line, parsed as JSON, is of this kind; the first kind in ``KINDS`` counts."""

    has_form: Callable[[Any], bool]
    evidence: Evidence


def _is_number(offset: Any) -> bool:
    return isinstance(offset, int) and not isinstance(offset, bool)


def _has_only(*names: str) -> Callable[[Any], bool]:
    return lambda offset: isinstance(offset, dict) and offset.keys() == set(names)


def _is_halfmq(offset: Any) -> bool:
    return isinstance(offset, dict) and "v" in offset and isinstance(offset.get("queues"), dict)


def _is_kafka(offset: Any) -> bool:
    """{topic: {partition: offset}}; empty as long as no topic fits a pattern."""
    return isinstance(offset, dict) and all(
        isinstance(ends, dict) and all(key.isdecimal() and _is_number(end) for key, end in ends.items())
        for ends in offset.values()
    )


#: Each source that Spark ships for streams, and those that we know.
KINDS: Final[Mapping[str, Kind]] = {
    # All formats of files, and tables of files: {"logOffset":K}
    "files": Kind(lambda offset: _has_only("logOffset")(offset) and _is_number(offset["logOffset"]), Evidence.FILE_LOG),
    # Seconds since sources/I/0.
    "rate": Kind(_is_number, Evidence.FIRST_FILE),
    "rate-micro-batch": Kind(_has_only("offset", "timestamp"), Evidence.LINES),
    # Topics, partitions and offsets, but not the cluster. Where batch 0 begins is only in sources/I/0.
    "kafka": Kind(_is_kafka, Evidence.FIRST_FILE),
    # The id of the store, and those of the topics.
    "halfmq": Kind(_is_halfmq, Evidence.LINES),
    # The id of the table, its version, and the place in it.
    "delta": Kind(lambda offset: isinstance(offset, dict) and offset.keys() >= _DELTA, Evidence.LINES),
    # A number as well, of lines since the query began to listen; they exist nowhere else.
    "socket": Kind(_is_number, Evidence.NONE),
    # Any other source, such as one written in Python. Its line may be enough, but nobody knows.
    "unknown": Kind(lambda offset: True, Evidence.NONE),
}


class BatchInput(NamedTuple):
    """``digest``: of what the batch is made of. ``other_digests``: by which it may have been decided, when logs of files were less new.

    ``files``: what the digests depend on, each before the directory that names it. ``unidentified``: lines of sources whose rows are not
    identified by anything.
    """

    digest: bytes
    other_digests: tuple[bytes, ...]
    files: tuple[Path, ...]
    unidentified: tuple[str, ...]


class _Line(NamedTuple):
    #: Number of the line, or with version 2 of offsets the number or name before the colon.
    key: str
    start: str
    end: str
    kind: str


def digest_of(*parts: str) -> bytes:
    """A digest of texts, in order; the boundaries between them count."""
    return blake2b(json.dumps(parts).encode(), digest_size=DIGEST_BYTES).digest()


def read_batch_input(checkpoint: Path, batch: int) -> BatchInput:
    """What batch ``batch`` is made of. Reads the files of the checkpoint; the caller must sync ``files``.

    Raises:
        EnvironmentFailed: files are missing or incomplete.
    """
    offsets = checkpoint / "offsets" / str(batch)
    text = _read(offsets)
    before = checkpoint / "offsets" / str(batch - 1)
    starts = _source_lines(before, _read(before)) if batch else {}
    ends = _source_lines(offsets, text)
    lines = [
        _Line(key, starts.get(key, _NO_OFFSET), end, kind_of(end))
        for key, end in sorted(ends.items(), key=lambda item: (len(item[0]), item[0]))
    ]
    evidence = {KINDS[line.kind].evidence for line in lines}
    directories: list[Path] = []
    if evidence & {Evidence.FILE_LOG, Evidence.FIRST_FILE}:
        directories = [path for path in _listed(checkpoint / "sources") if path.is_dir()]
    logs = {log.directory.name: log for log in map(_file_log, directories) if log is not None}
    began = _began([path for path in directories if path.name not in logs]) if Evidence.FIRST_FILE in evidence else {}
    parts = [part for line in lines for part in (line.key, line.start, line.end)]
    parts_began = [part for path, content in began.items() for part in ("began", path.parent.name, content)]
    names = {path.name for path in directories}
    digests: dict[bytes, None] = {}
    files: dict[Path, None] = {}
    read_entries = lru_cache(None)(_FileLog.entries)
    for way in _ways(lines, logs, names, is_version_2=text.partition("\n")[0].strip() == "v2"):
        try:
            found = [(logs[name], *read_entries(logs[name], *way[name])) for name in sorted(way)]
        except EnvironmentFailed:
            if not digests:
                raise
            continue  # it was not the one by which the batch was decided
        of_logs = [
            part for log, entries, _ in found for part in ("files", log.directory.name, digest_of(*entries).hex())
        ]
        digests[digest_of("input", *parts, *of_logs, *parts_began)] = None
        for log, _, read in found:
            files |= dict.fromkeys([*read, log.directory])
    for path in began:
        files |= dict.fromkeys([path, path.parent])
    if files:
        files[checkpoint / "sources"] = None
    if batch:
        files[before] = None
    files[offsets] = None
    digest, *others = digests
    return BatchInput(digest, tuple(others), tuple(files), _unidentified(lines, began.values()))


def _source_lines(path: Path, text: str) -> dict[str, str]:
    """Lines of sources: by number, or with version 2 by the number or name that they begin with."""
    version, *lines = text.split("\n")
    lines = [line for line in lines[_LINES_BEFORE_SOURCES - 1 :] if line]
    if not lines:
        raise EnvironmentFailed(
            f"{path} is incomplete: it has {len(text.splitlines())} lines, and none of a source",
            hint=_RESTORE,
        )
    if version.strip() != "v2":
        return {str(number): line for number, line in enumerate(lines)}
    return {key: offset for key, _, offset in (line.partition(":") for line in lines)}


def kind_of(line: str) -> str:
    """The kind of source, in ``KINDS``, whose offsets have the form of a line."""
    try:
        offset = json.loads(line)
    except ValueError:
        offset = None
    return next(name for name, kind in KINDS.items() if kind.has_form(offset))


def _unidentified(lines: Iterable[_Line], firsts: Iterable[str]) -> tuple[str, ...]:
    """Lines whose rows nothing identifies. A number is that of a rate source only if one has written when it began."""
    lines = [line for line in lines if line.end != _NO_OFFSET]
    numbers = {(line.start, line.end): line.end for line in lines if line.kind == "rate"}
    rates = sum(_is_number(_payload(first)) for first in firsts)
    found = [line.end for line in lines if KINDS[line.kind].evidence is Evidence.NONE]
    return tuple(dict.fromkeys([*found, *(list(numbers.values()) if len(numbers) > rates else ())]))


def _began(directories: Iterable[Path]) -> dict[Path, str]:
    """First files of sources that write there when they began (rate, Kafka), with their content."""
    found: dict[Path, str] = {}
    for path in (directory / "0" for directory in directories):
        if not path.is_file():
            continue
        try:
            content = path.read_bytes().decode().lstrip("\0")
        except OSError as error:
            raise _unreadable(error) from error
        except ValueError:
            continue  # of an unknown source
        payload = _payload(content)
        if _is_number(payload) or _is_kafka(payload):
            found[path] = content
    return found


def _payload(first: str) -> Any:
    """What the first file of a source contains after its version."""
    try:
        return json.loads(first.partition("\n")[2])
    except ValueError:
        return None


# --- the log of a file source ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _FileLog:
    """The log of a file source: files by number, where ``K`` has entry K, and ``K.compact`` that and all before. Not empty."""

    directory: Path
    plain: Mapping[int, Path]
    compact: Mapping[int, Path]

    @property
    def newest(self) -> int:
        return max([*self.plain, *self.compact])

    def entries(self, first: int, last: int) -> tuple[list[str], list[Path]]:
        """(what identifies the files in the entries ``first`` to ``last``, in an order that depends on nothing else; what was read).

        Raises:
            EnvironmentFailed: an entry is missing or malformed.
        """
        wanted: dict[Path, set[int]] = {}
        for number in range(first, last + 1):
            later = [self.compact[k] for k in sorted(self.compact) if k >= number]
            path = self.plain.get(number) or (later[0] if later else None)
            if path is None:
                raise EnvironmentFailed(
                    f"the checkpoint is damaged: {self.directory / str(number)} is missing, which names files of the batch",
                    hint=_RESTORE,
                )
            wanted.setdefault(path, set()).add(number)
        found = [entry for path, numbers in wanted.items() for entry in _entries(path, numbers)]
        return sorted(found), list(wanted)


def _entries(path: Path, numbers: set[int]) -> Iterator[str]:
    """A file, without the number of its entry, which says only in which batch it came."""
    for line in filter(None, _read(path).split("\n")[1:]):
        number = _NUMBER.search(line)
        try:
            if number is not None and int(number[1]) not in numbers:
                continue  # most of a compacted file
            entry = json.loads(line)
            if entry.pop("batchId") in numbers:
                yield json.dumps(entry, sort_keys=True)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise EnvironmentFailed(f"{path} is malformed: {error!r}", hint=_RESTORE) from error


def _file_log(directory: Path) -> _FileLog | None:
    """The log in the directory of a source; None if it is of another kind of source."""
    plain: dict[int, Path] = {}
    compact: dict[int, Path] = {}
    for path in _listed(directory):
        name = path.name.removesuffix(".compact")
        if name.isdecimal():
            (plain if name == path.name else compact)[int(name)] = path
    # The newest that has content: a power loss may leave the newest one empty.
    for number in sorted({*plain, *compact}, reverse=True)[:_EXAMINED_MAX]:
        try:
            with (plain.get(number) or compact[number]).open("rb") as content:
                content.readline()
                entry = json.loads(content.readline())
        except (OSError, ValueError):
            continue
        return _FileLog(directory, plain, compact) if isinstance(entry, dict) and entry.keys() >= _ENTRY else None
    return None


# --- which directory belongs to which line ---------------------------------------------------------------------------


def _ways(
    lines: Sequence[_Line], logs: Mapping[str, _FileLog], names: Collection[str], *, is_version_2: bool
) -> list[dict[str, tuple[int, int]]]:
    """What a batch may have of the logs, by directory: first and last entry. The likely way first; see the module. ``names``: of all
    directories.

    Raises:
        EnvironmentFailed: no log has the entries of a line.
    """
    newest = {name: log.newest for name, log in logs.items()}
    ranges = {line.key: _log_range(line) for line in lines}
    numbers = {name for name in names if name.isdecimal()}
    numbered = {int(line.key): line for line in lines if line.key.isdecimal() and len(line.key) <= _NUMBER_CHARS_MAX}
    if is_version_2 and numbers <= ranges.keys() and _have(newest, ranges):
        numbered = {}  # no source occurs again, or the numbers are names
    named = {line.key: ranges[line.key] for line in lines if not numbered or not line.key.isdecimal()}
    # Of sources that end at the same entry, the longest: more of an unchanging log does no harm.
    starts: dict[int, int] = {}
    for start, end in (ranges[line.key] for line in numbered.values()):
        starts[end] = min(start, starts.get(end, start))
    longest = {number: (starts[end], end) for number, end in ((n, ranges[line.key][1]) for n, line in numbered.items())}
    places = range(max(numbered, default=-1) + 1)
    # Version 2 has no lines of sources without data, which may also come last.
    count_min = 0 if is_version_2 else min(len(places), max((int(name) + 1 for name in numbers), default=0))

    def assigned(order: Sequence[int]) -> dict[str, tuple[int, int]]:
        return named | {str(source): longest.get(number, (-1, -1)) for source, number in enumerate(order)}

    def unlikely(order: Sequence[int]) -> int:
        """Number of logs whose newest entry is not the end of their line."""
        found = assigned(order)
        return sum(end != found.get(name, (-1, -1))[1] for name, end in newest.items())

    grow = _grow_version_2 if is_version_2 else _grow
    orders: list[tuple[int, ...]] = [()] if _have(newest, named) else []
    for place in places:
        more = {found for order in orders for found in grow(order, place, numbered)}
        fit = [one for one in more if len(one) + places[-1] - place >= count_min and _have(newest, assigned(one))]
        orders = sorted(fit, key=lambda order: (unlikely(order), order))[:_WAYS_MAX]
    if not orders:
        lost = [(start, end) for start, end in ranges.values() if start < end]
        start, end = next((one for one in lost if one[1] > max(newest.values(), default=-1)), lost[0])
        raise EnvironmentFailed(
            f"the checkpoint is damaged: entries {start + 1} to {end} of a file source are in no directory of sources",
            hint=_RESTORE,
        )
    return [
        {name: (start + 1, end) for name, (start, end) in assigned(order).items() if start < end} for order in orders
    ]


def _grow(order: tuple[int, ...], place: int, lines: Mapping[int, _Line]) -> Iterator[tuple[int, ...]]:
    """Sources in the order in which they first occur, each as the number of its first line, or of one that is equal; with the next place of
    the plan.
    """
    line = lines[place]
    first = next(number for number, other in lines.items() if (other.start, other.end) == (line.start, line.end))
    if first in order:
        yield order
    yield (*order, first)


def _grow_version_2(order: tuple[int, ...], place: int, lines: Mapping[int, _Line]) -> Iterator[tuple[int, ...]]:
    """With version 2 of offsets a line has the number of the last place of its source, and a source without data has none (here -1)."""
    if place in lines:
        yield order if place in order else (*order, place)
        return
    if order:
        yield order
    yield (*order, -1)
    yield from ((*order, number) for number in lines if number > place and number not in order)


def _have(newest: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether there are logs with these entries."""
    return all(start >= end or newest.get(name, -1) >= end for name, (start, end) in ranges.items())


def _log_range(line: _Line) -> tuple[int, int]:
    """(last entry of the batch before, last one of this), -1 if there is none; of a source of files."""
    start, end = (json.loads(text)["logOffset"] if kind_of(text) == "files" else -1 for text in (line.start, line.end))
    return start, end


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(error) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> EnvironmentFailed:
    return EnvironmentFailed(
        f"the checkpoint of the query cannot be read: {error}",
        hint="checkpointLocation must be a directory that the driver sees as a local path",
    )


_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.ASCII | re.DOTALL)


class Checkpoint:
    """The checkpoint directory of a query. ``location``: option ``checkpointLocation``."""

    def __init__(self, location: str) -> None:
        self.directory = _local(location)

    def query_id(self) -> str:
        """The id of the query.

        Raises:
            EnvironmentFailed: the file is missing or malformed.
        """
        text = _read(self.directory / "metadata")
        try:
            found = json.loads(text)["id"]
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailed(f"{self.directory / 'metadata'} does not contain the id of a query") from error
        return str(found)

    def check_offsets(self) -> None:
        """Before a query starts: that the offsets of its last batch are there. Spark fails without them, with "assertion failed" only, or
        begins a batch with this number again, and other rows.

        Raises:
            EnvironmentFailed: they are missing.
        """
        last = _last_batch(self.directory / "commits")
        known = _last_batch(self.directory / "offsets")
        if last is not None and (known is None or known < last):
            raise EnvironmentFailed(
                f"the checkpoint {self.directory} is damaged: batch {last} is over, but its offsets are gone "
                f"(offsets/{last}), so where the query continues is unknown",
                hint=f"restore the directory {self.directory / 'offsets'}; without it use a new checkpoint and a new output",
            )

    def secure(self, batch: int) -> BatchInput:
        """Sync the input of a batch to the disk, and return what it is.

        Raises:
            EnvironmentFailed: the files are missing, incomplete or cannot be synced. Do not decide the batch.
        """
        found = read_batch_input(self.directory, batch)
        others = (self.directory / "metadata", self.directory / "offsets", self.directory, self.directory.parent)
        try:
            for path in (*found.files, *others):
                sync(path)
        except OSError as error:
            raise EnvironmentFailed(f"the checkpoint of the query cannot be synced: {error}") from error
        return found


def _last_batch(log: Path) -> int | None:
    """The highest number of a batch in ``offsets`` or ``commits``; None: there is none."""
    try:
        return max((int(path.name) for path in log.iterdir() if path.name.isdecimal()), default=None)
    except FileNotFoundError:
        return None


def _local(location: str) -> Path:
    match = _URL.fullmatch(location)
    if match is None:
        return Path(location).absolute()
    rest = match["rest"]
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.removeprefix("/"))
    if match["scheme"].lower() != "file" or host not in ("", "localhost") or not slash:
        raise UsageError(
            f"checkpointLocation {location!r} is not a directory of the driver's machine",
            hint="the sink reads and syncs the checkpoint itself: use a local or mounted directory",
        )
    return Path("/" + path)


def sync(path: Path) -> None:
    """fsync of a file or a directory."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
