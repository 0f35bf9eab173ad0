"""SIGKILL of the broker under load, again and again: nothing acknowledged is lost, nothing twice, nothing torn.

Two services with 16 connections together keep transactions of one to four messages open; the broker has 1 MiB segments and
two checkpoints a second, so that rolls, trims and carry-forwards happen all the time; it is killed at random moments and
started again. In the end every transaction is settled, and three witnesses must agree: what the services know, what
consumers of everything and of one tag saw over the wire, and what the log holds. ``test_witnesses`` shows that each look can fail.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.recorder import TOPICS
from tests.crash.witnesses import Log, Told, read_seen, read_told, tag_faults, wire_faults
from tests.support.served import Served

pytestmark = pytest.mark.slow

#: How often the broker is killed; more for a long run.
KILLS = int(os.environ.get("HALFMQ_CRASH_KILLS", "50"))
SEED = int(os.environ.get("HALFMQ_CRASH_SEED", "20261121"))
#: Transactions per second of both services while the broker is up: 2,000 and more over the whole run, restarts included.
RATE = int(os.environ.get("HALFMQ_CRASH_RATE", "3200"))


def start(module: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(
        tmp_path / "data", tmp_path / "broker.log", "--durability", "fsync", "--segment-bytes", str(1 << 20),
        "--checkpoint-interval-ms", "500", "--retention-bytes", str(16 << 20),
        "--retention-check-ms", "150", "--dedup-window-ms", "2000", "--check-interval-ms", "1000",
    )  # fmt: skip
    served.start()
    yield served
    if served.process is not None and served.process.poll() is None:
        served.process.kill()
        served.process.wait()


@pytest.mark.timeout(1200)
def test_fifty_kills_under_load_lose_nothing_show_nothing_twice_and_tear_nothing(
    broker: Served, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    services = [
        start("tests.crash.recorder", "--port", str(broker.port), "--output", str(tmp_path / f"service-{n}.txt"),
              "--seed", str(SEED + n), "--connections", "8", "--window", "8", "--rate", str(RATE / 2))
        for n in range(2)
    ]  # fmt: skip
    watchers = [
        start("tests.crash.watcher", "--port", str(broker.port), "--output", str(tmp_path / name),
              "--topics", ",".join(TOPICS), "--tag", tag)
        for name, tag in (("seen.txt", "*"), ("seen-odd.txt", "odd"))
    ]  # fmt: skip
    started = time.monotonic()
    up_seconds = 0.0
    try:
        for _ in range(KILLS):
            up_seconds += pause(rng.uniform(0.2, 1.1))
            broker.kill()
            pause(rng.uniform(0.0, 0.2))
            broker.start()
        up_seconds += pause(1)
        for service in services:
            service.send_signal(signal.SIGTERM)
        elapsed = time.monotonic() - started
        summaries = []
        for service in services:
            out, _ = service.communicate(timeout=120)
            assert service.returncode == 0, out
            summaries.append(json.loads(out.splitlines()[-1]))
        for watcher in watchers:
            watcher.send_signal(signal.SIGTERM)
        for watcher in watchers:
            watcher.communicate(timeout=60)
            assert watcher.returncode == 0
    finally:
        for process in (*services, *watchers):
            if process.poll() is None:
                process.kill()
                process.wait()
    assert broker.stop() == 0
    told = read_told(line for n in range(2) for line in (tmp_path / f"service-{n}.txt").read_text().splitlines())
    print(
        f"\n{broker.kills} kills in {elapsed:.0f} s: {len(told.begun):,} transactions, {len(told.begun) / elapsed:,.0f} per "
        f"second, {len(told.begun) / up_seconds:,.0f} while the broker was up; longest restart {max(broker.ready_seconds):.2f} s"
    )
    print(json.dumps(summaries))
    assert all(summary["open"] == 0 for summary in summaries)
    check_wire(told, tmp_path / "seen.txt")
    check_tag("odd", tmp_path / "seen.txt", tmp_path / "seen-odd.txt")
    check_log(told, broker.data)


def pause(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def check_wire(told: Told, seen_file: Path) -> None:
    seen = read_seen(seen_file.read_text().splitlines())
    print(f"{seen.times.total():,} messages seen over the wire")
    faults = wire_faults(told, seen)
    assert not faults, f"{len(faults)} faults: {faults[:5]}"
    assert len(seen.times) > 300 * KILLS, "too little load to mean anything"


def check_tag(tag: str, seen_file: Path, tag_file: Path) -> None:
    seen, by_tag = (read_seen(file.read_text().splitlines()) for file in (seen_file, tag_file))
    faults = tag_faults(seen, by_tag, tag)
    assert not faults, f"{len(faults)} faults: {faults[:5]}"
    assert len(by_tag.times) > 100 * KILLS, "too little has the tag to mean anything"


def check_log(told: Told, data: Path) -> None:
    """What is still retained: one verdict for each transaction, with all its messages, and all that was acknowledged."""
    verified = subprocess.run(
        [sys.executable, "-m", "halfmq", "store", "verify", str(data)], capture_output=True, text=True, timeout=300
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    dump = subprocess.Popen(
        [sys.executable, "-m", "halfmq", "store", "dump", str(data)], stdout=subprocess.PIPE, text=True
    )
    assert dump.stdout is not None
    log = Log(told)
    for line in dump.stdout:
        log.take(json.loads(line))
    assert dump.wait(60) == 0
    print(json.dumps({"log": log.kinds}))
    faults = log.faults()
    assert not faults, f"{len(faults)} faults: {faults[:5]}"
    assert log.kinds["committed"] > 100
    assert log.kinds["rolled_back"] > 30
    assert log.kinds["trim"] > 0, "no trim happened"
    assert log.kinds["copied_half"] > 0, "no half was copied forward or copied"
    assert log.kinds["base"] > 1, "no segment was rolled"
