"""SIGKILL of the broker under load, again and again: nothing acknowledged is lost, nothing twice, nothing torn.

Two services with 16 connections together keep transactions of one to four messages open; the broker has 1 MiB segments and
a checkpoint each second, so that rolls, trims and carry-forwards happen all the time; it is killed at random moments and
started again. In the end every transaction is settled, and three witnesses must agree: what the services know, what a
consumer saw over the wire, and what the log holds.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.recorder import COMMIT, TOPICS, verdict_of
from tests.support.served import Served

pytestmark = pytest.mark.slow

#: How often the broker is killed; more for a long run.
KILLS = int(os.environ.get("HALFMQ_CRASH_KILLS", "50"))
SEED = int(os.environ.get("HALFMQ_CRASH_SEED", "20261121"))


def start(module: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(
        tmp_path / "data", tmp_path / "broker.log", "--durability", "fsync", "--segment-bytes", str(1 << 20),
        "--checkpoint-interval-ms", "1000", "--retention-bytes", str(8 << 20),
        "--retention-check-ms", "300", "--check-interval-ms", "1000",
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
    dice = random.Random(SEED)
    services = [
        start("tests.crash.recorder", "--port", str(broker.port), "--output", str(tmp_path / f"service-{n}.txt"),
              "--seed", str(SEED + n), "--connections", "8", "--rate", "1200")
        for n in range(2)
    ]  # fmt: skip
    watcher = start(
        "tests.crash.watcher",
        "--port",
        str(broker.port),
        "--output",
        str(tmp_path / "seen.txt"),
        "--topics",
        ",".join(TOPICS),
    )
    started = time.monotonic()
    try:
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.3, 2.2))
            broker.kill()
            time.sleep(dice.uniform(0.0, 0.3))
            broker.start()
        time.sleep(1)
        summaries = []
        for service in services:
            service.send_signal(signal.SIGTERM)
        for service in services:
            out, _ = service.communicate(timeout=120)
            assert service.returncode == 0, out
            summaries.append(json.loads(out.splitlines()[-1]))
        elapsed = time.monotonic() - started
        watcher.send_signal(signal.SIGTERM)
        watcher.communicate(timeout=60)
        assert watcher.returncode == 0
    finally:
        for process in (*services, watcher):
            if process.poll() is None:
                process.kill()
                process.wait()
    assert broker.stop() == 0
    check_witnesses(broker, tmp_path, summaries, elapsed)


def check_witnesses(broker: Served, tmp_path: Path, summaries: list[dict[str, object]], elapsed: float) -> None:
    begun: dict[str, int] = {}
    for number in range(2):
        for line in (tmp_path / f"service-{number}.txt").read_text().splitlines():
            if line.startswith("B "):
                _, tx_id, count = line.split()
                begun[tx_id] = int(count)
    assert all(summary["open"] == 0 for summary in summaries), json.dumps(summaries)
    committed = {tx_id: count for tx_id, count in begun.items() if verdict_of(tx_id) == COMMIT}
    expected = {f"{tx_id}.{index}" for tx_id, count in committed.items() for index in range(count)}

    seen: Counter[str] = Counter()
    strange = []
    for line in (tmp_path / "seen.txt").read_text().splitlines():
        fields = line.split()
        if fields[0] in ("GAP", "REFUSED"):
            strange.append(line)
        else:
            seen[fields[3]] += 1
    print(
        json.dumps(
            {
                "kills": broker.kills,
                "seconds": round(elapsed, 1),
                "transactions": len(begun),
                "tx_per_s": round(len(begun) / elapsed),
                "committed": len(committed),
                "messages_seen": sum(seen.values()),
                "summaries": summaries,
                "restart_s_max": round(max(broker.ready_seconds), 3),
            }
        )
    )
    assert not strange, strange[:10]
    lost, phantom = expected - seen.keys(), seen.keys() - expected
    twice = {unique: times for unique, times in seen.items() if times > 1}
    assert not lost, f"{len(lost)} committed messages were never seen: {sorted(lost)[:5]}"
    assert not phantom, f"{len(phantom)} messages of rolled-back transactions were seen: {sorted(phantom)[:5]}"
    assert not twice, f"{len(twice)} messages were seen more than once: {list(twice.items())[:5]}"
    assert len(seen) > 100 * KILLS, "too little load to mean anything"
    check_log(broker, begun)


def check_log(broker: Served, begun: dict[str, int]) -> None:
    """What is still retained: one commit record per transaction, with all its messages, for committed ones only."""
    verified = subprocess.run(
        [sys.executable, "-m", "halfmq", "store", "verify", str(broker.data)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    dump = subprocess.Popen(
        [sys.executable, "-m", "halfmq", "store", "dump", str(broker.data)], stdout=subprocess.PIPE, text=True
    )
    assert dump.stdout is not None
    kinds: Counter[str] = Counter()
    commits: Counter[str] = Counter()
    halves: Counter[tuple[str, int]] = Counter()
    for line in dump.stdout:
        record = json.loads(line)
        kind = record["kind"].upper()
        kinds[kind] += 1
        if kind == "HALF":
            halves[record["tx_id"], record["index"]] += 1
        elif kind == "COMMITTED":
            tx_id = record["tx_id"]
            commits[tx_id] += 1
            assert verdict_of(tx_id) == COMMIT, f"{tx_id} must not be committed"
            assert len(record["refs"]) == begun[tx_id], f"{tx_id} is torn: {record}"
        elif kind == "ROLLED_BACK":
            assert verdict_of(record["tx_id"]) != COMMIT, f"{record['tx_id']} must not be rolled back"
    assert dump.wait(60) == 0
    print(json.dumps({"log": kinds}))
    assert all(times == 1 for times in commits.values()), [tx for tx, times in commits.items() if times > 1][:5]
    assert all(times == 1 for times in halves.values()), [half for half, times in halves.items() if times > 1][:5]
    assert kinds["COMMITTED"] > 100
    assert kinds["ROLLED_BACK"] > 30
    assert kinds["TRIM"] > 0, "no trim happened"
    assert kinds["CARRIED_HALF"] > 0, "no half was carried forward or copied"
    assert kinds["BASE"] > 1, "no segment was rolled"
