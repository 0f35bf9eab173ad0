"""The audit log: nothing is lost between a note and the end, floods are counted, and nobody waits for a disk."""

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_until

from halfmq import limits
from halfmq.broker.audit_log import AuditLog
from halfmq.broker.rotated_files import RotatedFiles
from halfmq.errors import EnvironmentFailed
from halfmq.runtime.clock import SystemClock

REFUSAL = {
    "event": "refused", "user": "shop", "address": "10.0.0.7", "command": "SEND_MESSAGE", "on": ["orders"], "code": 16,
    "text": "user shop may not send to topic orders",
}  # fmt: skip
DONE = {"event": "done", "user": "alice", "operator": "alice", "on": ["shop"], "command": "HMQ_SET_USER", "code": 0}


class StillClock(SystemClock):
    """Stands still until it is set forward."""

    ms = 1_000_000

    def wall_ms(self) -> int:
        return 1_769_847_300_000 + self.ms

    def monotonic_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def opened(path: Path, clock: StillClock, *, bytes_max: int = 1 << 20, files_max: int = 3) -> AuditLog:
    return AuditLog(path, bytes_max, files_max, clock=clock)


def lines(*paths: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def without_time(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "at"}


def test_an_event_is_a_line_with_its_time_and_without_what_is_empty(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    clock.ms = 1_007
    log.note({**DONE, "text": "", "address": None, "on": []})
    assert log.close()
    assert path.read_text() == (
        '{"at":"2026-01-31T08:15:01.007Z","event":"done","user":"alice","operator":"alice","command":"HMQ_SET_USER","code":0}\n'
    )


def test_nothing_is_lost_between_a_note_and_the_end(path: Path, clock: StillClock) -> None:
    log = opened(path, clock, bytes_max=20_000, files_max=100)
    for number in range(5_000):
        log.note({**DONE, "text": str(number)})
    log.note(REFUSAL)  # waits for others
    assert log.close()
    files = [path.with_name(f"{path.name}.{number}") for number in range(99, 0, -1)]
    found = lines(*[file for file in files if file.exists()], path)
    assert [line["text"] for line in found[:-1]] == [str(number) for number in range(5_000)]
    assert without_time(found[-1]) == REFUSAL
    assert log.lost == 0


def test_notes_of_several_threads_are_all_there(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)

    def notes(name: int) -> None:
        for number in range(500):
            log.note({**DONE, "text": f"{name} {number}"})
            log.note({**REFUSAL, "user": f"user-{name}"})

    threads = [threading.Thread(target=notes, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.close()
    found = lines(path)
    assert len({line["text"] for line in found if line["event"] == "done"}) == 2_000
    assert {line["user"]: line["count"] for line in found if line["event"] == "refused"} == dict.fromkeys(
        (f"user-{name}" for name in range(4)), 500
    )


def test_equal_refusals_of_a_second_are_one_line_with_their_number(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    for number in range(1_000):
        clock.ms += number == 999
        log.note(REFUSAL | {"on": [f"orders-{number % 2}"]})
    for other in ({"user": "x"}, {"address": "10.0.0.8"}, {"code": 17}, {"text": "y"}, {"command": "PULL_MESSAGE"}):
        log.note(REFUSAL | other)
        log.note(REFUSAL | other | {"count": 4})
    assert log.close()
    first, *others = lines(path)
    assert (first["count"], first["on"]) == (1_000, ["orders-0", "orders-1"])
    assert first["at"].endswith(":40.000Z"), "of the first one"
    assert [line["count"] for line in others] == [5] * 5


def test_the_next_second_has_a_line_of_its_own_also_if_the_thread_is_late(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    log.note(REFUSAL)
    clock.ms += 1_000
    log.note(REFUSAL)
    log.note(REFUSAL)
    assert log.close()
    assert [line.get("count", 1) for line in lines(path)] == [1, 2]


@pytest.mark.slow
def test_a_refusal_is_written_when_its_second_is_over_without_another_event(path: Path) -> None:
    log = AuditLog(path, 1 << 20, 3)
    log.note(REFUSAL)
    wait_until(lambda: path.stat().st_size > 0, "a line")
    assert without_time(lines(path)[0]) == REFUSAL
    assert log.close()


def test_what_is_done_is_never_put_together(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    for _ in range(3):
        log.note(DONE)
    assert log.close()
    assert [without_time(line) for line in lines(path)] == [DONE] * 3


class Blocked:
    """A disk that hangs until ``go``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.waits = threading.Event()
        write = RotatedFiles.write

        def slow(files: RotatedFiles, data: bytes) -> None:
            self.waits.set()
            assert self.go.wait(60)
            write(files, data)

        monkeypatch.setattr(RotatedFiles, "write", slow)


def test_a_disk_that_hangs_stops_nobody_and_a_flood_is_counted(
    path: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Blocked(monkeypatch)
    log = opened(path, clock, bytes_max=1 << 30)
    log.note(DONE)
    assert disk.waits.wait(60)
    count = 3 * limits.AUDIT_WAITING_BYTES_MAX // 500
    for number in range(count):  # each of them would wait for the disk in this thread
        log.note({**REFUSAL, "user": f"user-{number}", "text": "x" * 480})
    disk.go.set()
    assert log.close(60)
    found = lines(path)
    refused = [line["user"] for line in found if line["event"] == "refused"]
    (lost,) = [line["count"] for line in found if line["event"] == "lost"]
    assert len(refused) + lost == count
    assert len(set(refused)) == len(refused)
    assert lost == log.lost > count / 2
    assert f"{lost} lines are lost, because too many waited" in caplog.text


def test_the_end_does_not_wait_for_ever(
    path: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Blocked(monkeypatch)
    log = opened(path, clock)
    log.note(DONE)
    assert not log.close(0.05)
    assert "could not be written completely within 0.05 s" in caplog.text
    disk.go.set()
    log._queue._thread.join()


def test_files_are_the_owners_alone_also_one_that_was_not(path: Path, clock: StillClock) -> None:
    path.write_text("")
    path.chmod(0o644)
    log = opened(path, clock, bytes_max=500)
    for _ in range(20):
        log.note(DONE)
    assert log.close()
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


@pytest.mark.parametrize("files_max", [0, 1, 3])
def test_files_are_rotated_by_size_and_a_number_is_kept(path: Path, clock: StillClock, files_max: int) -> None:
    log = opened(path, clock, bytes_max=1_000, files_max=files_max)
    for number in range(200):
        log.note({**DONE, "text": f"{number:03}"})
    assert log.close()
    old = [path.with_name(f"{path.name}.{number}") for number in range(files_max, 0, -1)]
    assert sorted(path.parent.iterdir()) == sorted([path, *old])
    assert all(file.stat().st_size <= 1_000 for file in (path, *old))
    numbers = [int(line["text"]) for line in lines(*old, path)]
    assert numbers == list(range(200 - len(numbers), 200)), "the newest, in their order"
    assert len(numbers) > 5 * files_max


def test_a_line_longer_than_a_file_has_one_of_its_own(path: Path, clock: StillClock) -> None:
    log = opened(path, clock, bytes_max=100)
    for number in range(3):
        log.note({**DONE, "text": str(number)})
    assert log.close()
    files = [path.with_name(f"{path.name}.2"), path.with_name(f"{path.name}.1"), path]
    assert [line["text"] for line in lines(*files)] == ["0", "1", "2"]


def test_a_start_goes_on_with_the_file_and_ends_a_line_that_a_crash_cut(path: Path, clock: StillClock) -> None:
    path.write_text('{"event":"done"}\n{"event":"do')
    log = opened(path, clock)
    log.note(DONE)
    assert log.close()
    whole, cut, ours = path.read_text().splitlines()
    assert (json.loads(whole), cut) == ({"event": "done"}, '{"event":"do')
    assert without_time(json.loads(ours)) == DONE


def test_a_file_that_somebody_moved_is_written_no_more(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    log.note({**DONE, "text": "before"})
    wait_until(lambda: path.stat().st_size > 0, "a line")
    path.rename(path.with_name("moved"))
    log.note({**DONE, "text": "after"})
    assert log.close()
    assert [line["text"] for line in lines(path)] == ["after"]
    assert [line["text"] for line in lines(path.with_name("moved"))] == ["before"]


def test_an_unusable_file_stops_the_start(path: Path, clock: StillClock, tmp_path: Path) -> None:
    os.mkfifo(path)
    for wrong, why in (
        (tmp_path / "missing" / "audit", "No such file"),
        (tmp_path, "Is a directory"),
        (path, "not a regular file"),
    ):
        with pytest.raises(EnvironmentFailed, match=f"cannot be written: .*{why}.*--audit-log with"):
            opened(wrong, clock)
    assert not [thread for thread in threading.enumerate() if thread.name == "halfmq-audit"]


class FullDisk:
    """Writes a few bytes of a line, then has no space, while ``is_full``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.refused = 0
        write = os.write

        def into(descriptor: int, data: Any) -> int:
            if not self.is_full or "audit.jsonl" not in os.readlink(f"/proc/self/fd/{descriptor}"):
                return write(descriptor, data)
            if len(data) > 10:
                return write(descriptor, bytes(data[: len(data) - 10]))
            self.refused += 1
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", into)


def test_a_full_disk_costs_lines_that_are_counted_and_stops_nobody(
    path: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfmq.audit")
    disk = FullDisk(monkeypatch)
    log = opened(path, clock)
    log.note({**DONE, "text": "before"})
    wait_until(lambda: path.stat().st_size > 0, "a line")
    disk.is_full = True
    for number in range(20):
        log.note({**DONE, "text": f"lost {number}"})
    wait_until(lambda: log.lost == 20, "lost lines")
    disk.is_full = False
    log.note({**DONE, "text": "after"})
    assert log.close()
    first, lost, last = lines(path)  # each line is complete
    assert (first["text"], last["text"]) == ("before", "after")
    assert without_time(lost) == {"event": "lost", "count": 20}
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "cannot be written, lines are lost: No space left" in text]) == 1
    assert len([text for text in said if text.endswith("is written again")]) == 1


def test_a_disk_that_is_full_to_the_end_is_no_success(
    path: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)
    log = opened(path, clock)
    disk.is_full = True
    log.note(DONE)
    assert not log.close()
    assert (log.lost, path.read_bytes()) == (1, b"")


def test_a_directory_that_is_gone_costs_lines_and_comes_back(path: Path, clock: StillClock, tmp_path: Path) -> None:
    home = tmp_path / "logs"
    home.mkdir()
    log = opened(home / "audit", clock)
    home.rename(tmp_path / "gone")
    log.note({**DONE, "text": "lost"})
    wait_until(lambda: log.lost == 1, "a lost line")
    home.mkdir()
    log.note({**DONE, "text": "found"})
    assert log.close()
    assert [line.get("text") or line["count"] for line in lines(home / "audit")] == [1, "found"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('two\nlines "quoted"', 'two\\nlines "quoted"'),
        ("\x1b[2Jgone\x00", r"\x1b[2Jgone\x00"),
        ("right\u202eleft", r"right\u202eleft"),
        ("half \ud800", r"half \ud800"),
        ("Grüße", "Grüße"),
        ("z" * 10_000, "z" * 500 + "... (9500 more characters)"),
    ],
)
def test_text_of_peers_is_cut_and_controls_nothing(path: Path, clock: StillClock, text: str, shown: str) -> None:
    log = opened(path, clock)
    log.note({"event": "refused", "user": text, "text": text, "on": [text] * 100})
    log.note({"event": "done", "user": text, "text": text, "on": (text,)})
    assert log.close()
    assert len(path.read_text().splitlines()) == 2
    assert path.read_text().replace("\n", "").isprintable()
    for line in lines(path):
        assert (line["user"], line["text"], line["on"][0]) == (shown, shown, shown)
        assert len(line["on"]) <= limits.AUDIT_NAMES_MAX


def test_more_different_refusals_than_are_held_are_lines_at_once(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    for number in range(limits.AUDIT_HELD_MAX + 5):
        log.note({**REFUSAL, "user": f"user-{number}"})
    assert len(log._held) == limits.AUDIT_HELD_MAX
    wait_until(lambda: path.stat().st_size > 0, "a line")
    assert log.close()
    assert len(lines(path)) == limits.AUDIT_HELD_MAX + 5


def test_after_the_end_there_is_nothing(path: Path, clock: StillClock) -> None:
    log = opened(path, clock)
    assert log.close()
    log.note(DONE)
    log.note(REFUSAL)
    assert log.close()
    assert path.read_bytes() == b""
