"""Reading files: torn lines of killed processes are ignored and counted; any other error is reported with its line."""

import os
from pathlib import Path

import msgspec
import pytest

from halfmq.errors import UsageError
from halfmq.testing.history import check_files
from halfmq.testing.history import reader as reader_module
from halfmq.testing.history.events import AnyEvent, Fault, FileStarted
from halfmq.testing.history.reader import EventsSource, FileSource, Sources, files_of

BEGAN = b'{"e":"began","t_us":1,"by":"p"}\n'


def fault(number: int) -> bytes:
    return b'{"e":"fault","t_us":%d,"by":"p","what":"w%d"}\n' % (number, number)


def source(tmp_path: Path, data: bytes) -> FileSource:
    path = tmp_path / "h.jsonl"
    path.write_bytes(data)
    return FileSource(path)


def events(source: FileSource) -> list[AnyEvent]:
    return [event for block in source.blocks() for event in block.events]


def test_the_torn_last_line_of_a_killed_process_is_ignored_wherever_it_ends(tmp_path: Path) -> None:
    last = fault(2)
    for cut in range(len(last) + 1):
        file = source(tmp_path, BEGAN + fault(1) + last[:cut])
        assert len(events(file)) == (
            3 if cut >= len(last) - 1 else 2
        )  # a line that lacks only its line end is complete
        assert file.torn == (0 if cut in (0, len(last) - 1, len(last)) else 1)


def test_a_complete_last_line_that_is_not_an_event_is_an_error(tmp_path: Path) -> None:
    """A value of the wrong type must not make an event disappear."""
    with pytest.raises(UsageError, match=r":3: not an event"):
        list(source(tmp_path, BEGAN + b"\n" + b'{"e":"fault","t_us":"90","by":"p","what":"kill"}\n').blocks())
    with pytest.raises(UsageError, match=r":1: not an event"):
        list(source(tmp_path, b'{"a":1}\n').blocks())


def test_a_restarted_process_continues_after_its_torn_line(tmp_path: Path) -> None:
    file = source(tmp_path, BEGAN + fault(1) + b'{"e":"fa\n' + BEGAN + fault(2))
    assert [type(event) for event in events(file)] == [FileStarted, Fault, FileStarted, Fault]
    assert file.torn == 1
    assert '"w2"' in file.line(5)


def test_a_damaged_line_in_the_middle_makes_the_file_unusable_and_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"h\.jsonl:3: not an event: .*only a last line"):
        events(source(tmp_path, BEGAN + fault(1) + b"{}\n" + fault(2)))


def test_a_file_that_is_not_a_history_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the first line must be a `began`"):
        events(source(tmp_path, fault(1)))
    with pytest.raises(UsageError, match="format 2; this program reads format 1"):
        events(source(tmp_path, b'{"e":"began","t_us":1,"by":"p","format":2}\n'))
    with pytest.raises(UsageError, match="No such file"):
        FileSource(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \*\.jsonl files"):
        files_of([tmp_path / "empty"])


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "h.jsonl").write_bytes(BEGAN)
    for path in (tmp_path / "pipe.jsonl", tmp_path):
        with pytest.raises(UsageError, match=r"pipe\.jsonl: not a regular file"):
            check_files([path])


def test_a_line_with_too_deep_nesting_is_named_and_never_taken_for_torn(tmp_path: Path) -> None:
    deep = b'{"e":"fault","t_us":2,"by":"p","what":"w","x":' + b"[" * 5_000
    for line in (deep, deep + b"\n", deep + b"]" * 5_000 + b"}\n", deep + b"\n" + BEGAN):
        with pytest.raises(UsageError, match=r"h\.jsonl:3: not an event: .*recursion"):
            events(source(tmp_path, BEGAN + fault(1) + line))


def test_a_source_can_be_the_log_of_a_store(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        BEGAN + b'{"e":"log","t_us":1,"by":"log","kind":"message","offset":4096,"message":"M","topic":"t"}\n'
    )
    (violation,) = check_files([], logs=[FileSource(path, log_of=Path("/var/lib/halfmq"))]).violations
    (event,) = violation.events
    assert event.where == "/var/lib/halfmq log offset 4096"
    assert "/var/lib/halfmq log offset 4096  {" in violation.text()
    (violation,) = check_files([path]).violations
    assert violation.events[0].where == f"{path}:2"


def test_an_empty_file_is_legal_since_a_process_may_be_killed_at_once(tmp_path: Path) -> None:
    file = source(tmp_path, b"")
    assert events(file) == []
    assert file.torn == 0


@pytest.mark.parametrize("block_bytes", [1, 7, 40, 100, 1 << 20])
def test_line_numbers_do_not_depend_on_how_the_file_is_read(
    tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", block_bytes)
    file = source(tmp_path, BEGAN + b"\n" + b"".join(map(fault, range(20))) + b"{torn")
    sources = Sources()
    sources.add(EventsSource([]))
    base = sources.add(file)
    seen = 0
    for block in file.blocks():
        for number, event in enumerate(block.events, block.line):
            found, text = sources.event(base + number)
            assert found == event
            assert msgspec.json.decode(text)["t_us"] == event.t_us
            assert sources.name_and_line(base + number) == (str(tmp_path / "h.jsonl"), number)
            seen += 1
    assert seen == 21
    assert sources.torn == 1


def test_a_directory_means_its_files_in_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "notes.txt"):
        (tmp_path / name).write_bytes(BEGAN)
    assert [file.path.name for file in files_of([tmp_path])] == ["a.jsonl", "b.jsonl"]
