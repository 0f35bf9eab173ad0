"""When a call returns, its event is in the file, whatever happens to the process."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from halfmq.testing.history.events import AnyEvent, Fault, FileStarted, PlainSent
from halfmq.testing.history.recorder import MemoryRecorder, Recorder

decode = msgspec.json.Decoder(AnyEvent).decode


def lines(path: Path) -> list[AnyEvent]:
    return [decode(line) for line in path.read_bytes().splitlines()]


def test_the_first_line_describes_the_recording(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h", "p1", lambda: 7, system="halfmq 0.1.0", policy_groups=("g",)) as recorder:
        recorder.record(Fault, what="kill", whom="broker")
    assert lines(tmp_path / "h") == [
        FileStarted(t_us=7, by="p1", system="halfmq 0.1.0", policy_groups=("g",)),
        Fault(t_us=7, by="p1", what="kill", whom="broker"),
    ]


def test_record_writes_what_was_noted_before(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h", "p1")
    recorder.note(Fault, what="a")
    assert len(lines(tmp_path / "h")) == 1
    recorder.record(Fault, what="b")
    assert [event.what for event in lines(tmp_path / "h")[1:]] == ["a", "b"]  # type: ignore[union-attr]
    recorder.close()


def test_a_killed_process_loses_nothing_that_it_recorded(tmp_path: Path) -> None:
    program = f"""
import os
from pathlib import Path
from halfmq.testing.history.events import Fault
from halfmq.testing.history.recorder import Recorder
recorder = Recorder(Path({str(tmp_path / "h")!r}), "p")
for number in range(1000):
    recorder.record(Fault, what=str(number))
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    assert [event.what for event in lines(tmp_path / "h")[1:]] == [str(n) for n in range(1000)]  # type: ignore[union-attr]


def test_a_file_that_ends_in_half_a_line_is_continued_on_a_new_line(tmp_path: Path) -> None:
    (tmp_path / "h").write_bytes(b'{"e":"began","t_us":1,"by":"p"}\n{"e":"pla')
    Recorder(tmp_path / "h", "p", lambda: 2).close()
    first, torn, again = (tmp_path / "h").read_bytes().splitlines()
    assert torn == b'{"e":"pla'
    assert (decode(first), decode(again)) == (FileStarted(t_us=1, by="p"), FileStarted(t_us=2, by="p"))


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "h", "p")

    def write(number: int) -> None:
        for turn in range(200):
            recorder.record(PlainSent, op=f"{number}.{turn}", message="m" * 300, topic="t")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert len(lines(tmp_path / "h")) == 801


def test_memory_recorders_share_a_list_in_the_order_of_the_calls() -> None:
    now = [0]
    one = MemoryRecorder("one", lambda: now[0])
    two = MemoryRecorder("two", lambda: now[0], one.events)
    now[0] = 5
    two.record(Fault, what="x")
    one.note(Fault, what="y")
    assert [(event.by, event.t_us) for event in one.events] == [("one", 0), ("two", 0), ("two", 5), ("one", 5)]
