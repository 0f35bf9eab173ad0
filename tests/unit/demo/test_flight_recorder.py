"""What a killed process was doing can be read from its file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo.flight_recorder import Counter, FlightRecorder, Phase, read
from tests.support.waiting import PATIENCE_S, wait_until


def test_missing_file_is_a_service_that_did_nothing(tmp_path: Path) -> None:
    snapshot = read(tmp_path / "none.flight")
    assert (snapshot.open, snapshot.done) == (0, 0)


def test_phases_and_counters(tmp_path: Path) -> None:
    path = tmp_path / "x.flight"
    recorder = FlightRecorder(path, workers=4)
    for worker, phase in enumerate((Phase.LOCAL, Phase.SENDING, Phase.PREPARED, Phase.TELLING)):
        recorder.enter(worker, phase, 7)
    recorder.set(Counter.ORDERS, 10)
    recorder.count(Counter.ORDERS)
    recorder.count(Counter.NOTHING_TO_PAY)
    recorder.latency(0.003)
    snapshot = read(path)
    assert snapshot.open == 3  # the local one has sent nothing
    assert snapshot.done == 12
    assert sum(snapshot.latency) == snapshot.latency[11] == 1  # 2,048 to 4,095 microseconds
    recorder.clear_workers()
    assert read(path).open == 0


def test_counters_stay_for_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "x.flight"
    FlightRecorder(path, workers=1).count(Counter.CHECKS_COMMIT)
    FlightRecorder(path, workers=1).count(Counter.CHECKS_COMMIT)
    assert read(path).counters[Counter.CHECKS_COMMIT] == 2


@pytest.mark.slow
def test_sigkill_leaves_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.flight"
    program = (
        "import sys, time; from pathlib import Path; from demo.flight_recorder import *\n"
        "recorder = FlightRecorder(Path(sys.argv[1]), 2); recorder.enter(1, Phase.PREPARED, 5); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    wait_until(lambda: read(path).open, "an entry of the process")
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    assert read(path).phases[1] is Phase.PREPARED


def test_file_that_has_no_size_yet_is_a_service_that_did_nothing_yet(tmp_path: Path) -> None:
    """It is read while its service makes it, and a kill may come in between."""
    path = tmp_path / "recorder"
    path.touch()
    assert read(path) == read(tmp_path / "not there")
    FlightRecorder(path, workers=1).count(Counter.ORDERS)
    assert read(path).counters[Counter.ORDERS] == 1
    FlightRecorder(path, workers=1).count(Counter.ORDERS)
    assert read(path).counters[Counter.ORDERS] == 2
