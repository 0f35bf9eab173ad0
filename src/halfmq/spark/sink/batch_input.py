"""What a batch of a stream is made of, as far as Spark's checkpoint says it, and a digest of that.

    offsets/N     version, a line about the batch (times, settings), then one line for each place of a source in the plan: where it ends
                  in batch N, or "-". Batch N begins where these lines of offsets/N-1 end
    sources/I/K   what a source writes about itself: I is its number, or its name

A line is not always enough to say which rows they are; ``KINDS`` says for each source what else is needed. Lines do not say of which
source they are, so a kind is recognised by its form.

A source that occurs twice in the plan has two equal lines and one directory, so the number of a line is not that of a directory. A
directory of a file source is found by its newest entry instead: Spark decides a batch before it plans the next one, so that entry is the end of the
source's line. Where several lines end there, the entries of all their ranges are taken: more of an unchanging log does no harm.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

from halfmq.errors import EnvironmentFailed
from halfmq.wire.remoting.half_batches import DIGEST_BYTES

#: Lines of offsets/N before those of the sources: the version, and times and settings, which differ between runs of a batch.
_LINES_BEFORE_SOURCES: Final = 2
#: The line of a source without any data yet.
_NO_OFFSET: Final = "-"
_DELTA: Final = frozenset({"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"})
_ENTRY: Final = frozenset({"path", "timestamp", "batchId"})
_NUMBER: Final = re.compile(r'"batchId"\s*:\s*(\d+)', re.ASCII)
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
    """{topic: {partition: offset}}"""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(ends, dict) and all(key.isdecimal() and _is_number(end) for key, end in ends.items())
            for ends in offset.values()
        )
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
    """``digest``: of what the batch is made of. ``earlier_digest``: of the lines alone, as halfmq computed it before.

    ``files``: what the digest depends on, each before the directory that names it. ``unidentified``: lines of sources whose rows are not
    identified by anything.
    """

    digest: bytes
    earlier_digest: bytes
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
    directories = [path for path in _listed(checkpoint / "sources") if path.is_dir()]
    logs = [log for log in map(_file_log, directories) if log is not None]
    first_files = {
        path.name: path / "0"
        for path in directories
        if (path / "0").exists() and path not in {log.directory for log in logs}
    }
    firsts = {name: _read(path).lstrip("\0") for name, path in sorted(first_files.items())}
    parts = [part for line in lines for part in (line.key, line.start, line.end)]
    files: list[Path] = []
    for log, first, last in _ranges(lines, logs):
        entries, read = log.entries(first, last)
        parts += ["files", log.directory.name, digest_of(*entries).hex()]
        files += [*read, log.directory]
    for name, content in firsts.items():
        parts += ["began", name, content]
        files += [first_files[name], first_files[name].parent]
    if files:
        files.append(checkpoint / "sources")
    if batch:
        files.append(before)
    files.append(offsets)
    earlier = digest_of(*text.splitlines()[_LINES_BEFORE_SOURCES:])
    return BatchInput(digest_of("input", *parts), earlier, tuple(files), _unidentified(lines, firsts.values()))


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


def _payload(first: str) -> Any:
    """What the first file of a source contains after its version."""
    try:
        return json.loads(first.partition("\n")[2])
    except ValueError:
        return None


# --- the log of a file source ----------------------------------------------------------------------------------


class _FileLog(NamedTuple):
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
    if not plain and not compact:
        return None
    log = _FileLog(directory, plain, compact)
    newest = plain.get(log.newest) or compact[log.newest]
    try:
        with newest.open(encoding="utf-8") as content:
            content.readline()
            entry = json.loads(content.readline())
    except (OSError, ValueError):
        return None
    return log if isinstance(entry, dict) and entry.keys() >= _ENTRY else None


def _ranges(lines: Iterable[_Line], logs: Iterable[_FileLog]) -> list[tuple[_FileLog, int, int]]:
    """(log, first entry, last entry) of a batch, for each log with some. See the module for why not by the number of the line.

    Raises:
        EnvironmentFailed: no log has the entries of a line.
    """
    ranges = {(line.key, *_log_range(line)) for line in lines if line.kind == "files"}
    missing = {(start, end) for _, start, end in ranges if start < end}
    found: list[tuple[_FileLog, int, int]] = []
    newer: list[tuple[_FileLog, set[tuple[int, int]]]] = []
    for log in logs:
        name = log.directory.name
        own = {(start, end) for key, start, end in ranges if key == name or (key.isdecimal() and name.isdecimal())}
        at_end = {(start, end) for start, end in own if end == log.newest}
        if at_end:
            missing -= at_end
            found.append((log, min(start for start, _ in at_end) + 1, log.newest))
        else:
            newer.append((log, {(start, end) for start, end in own if end < log.newest}))
    # A log that is newer than its line: the checkpoint was copied while the query ran.
    for log, own in newer:
        left = own & missing
        if left:
            found.append((log, min(start for start, _ in left) + 1, max(end for _, end in left)))
    for start, end in sorted(missing.difference(*(own for _, own in newer))):
        raise EnvironmentFailed(
            f"the checkpoint is damaged: entries {start + 1} to {end} of a file source are in no directory of sources",
            hint=_RESTORE,
        )
    return [one for one in found if one[1] <= one[2]]


def _log_range(line: _Line) -> tuple[int, int]:
    """(last entry of the batch before, last one of this), -1 if there is none before."""
    start = json.loads(line.start)["logOffset"] if kind_of(line.start) == "files" else -1
    return start, json.loads(line.end)["logOffset"]


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
