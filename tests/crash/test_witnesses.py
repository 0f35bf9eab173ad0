"""Each look of the crash test can fail: faults are planted into the records of a real run, one at a time."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from tests.crash.recorder import COMMIT, TOPICS, Recorder, verdict_of
from tests.crash.watcher import Watcher
from tests.crash.witnesses import Log, read_seen, read_told, tag_faults, wire_faults
from tests.support.in_process import SEGMENT_BYTES, serving

pytestmark = pytest.mark.slow

Lines = list[str]
Records = list[dict[str, Any]]


class Evidence(NamedTuple):
    """What the crash test looks at, of one run without a crash."""

    told: Lines
    seen: Lines
    #: By who asked for the tag "odd".
    odd: Lines
    records: Records
    data: Path


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    directory = tmp_path_factory.mktemp("witnesses")
    return asyncio.run(gather_evidence(directory))


async def gather_evidence(directory: Path) -> Evidence:
    data, told, seen = directory / "data", directory / "service.txt", directory / "seen.txt"
    async with serving(data, settings=BrokerSettings(check_interval_ms=200)) as running:
        recorder = Recorder(running.ports.broker, str(told), 5, connections=2, window=4, rate=600)
        watcher = Watcher(running.ports.broker, str(seen), list(TOPICS), 8)
        picky = Watcher(running.ports.broker, str(directory / "odd.txt"), list(TOPICS), 8, "odd")
        watching = asyncio.gather(watcher.run(), picky.run())
        recording = asyncio.create_task(recorder.run())
        while recorder.counts["begun"] < 1_000:
            await asyncio.sleep(0.05)
        recorder.stopping = True
        await asyncio.wait_for(recording, 60)
        watcher.stopping = picky.stopping = True
        await asyncio.wait_for(watching, 60)
        assert not recorder.open
        records = dump(data)
    lines = [path.read_text().splitlines() for path in (told, seen, directory / "odd.txt")]
    return Evidence(*lines, records, data)


def dump(data: Path) -> Records:
    return [json.loads(line) for line in dump_store(RealDisk(), data)]


def on_the_wire(told: Lines, seen: Lines) -> list[str]:
    return wire_faults(read_told(told), read_seen(seen))


def in_the_log(told: Lines, records: Records) -> list[str]:
    log = Log(read_told(told))
    for record in records:
        log.take(record)
    return log.faults()


def by_tag(seen: Lines, odd: Lines) -> list[str]:
    return tag_faults(read_seen(seen), read_seen(odd), "odd")


def test_look_at_the_tag_goes_red(evidence: Evidence) -> None:
    assert by_tag(evidence.seen, evidence.odd) == []
    assert len(evidence.odd) > 300
    assert [fault.partition(":")[0] for fault in by_tag(evidence.seen, evidence.odd[1:])] == ["lost"]
    assert [fault.partition(":")[0] for fault in by_tag(evidence.seen, [*evidence.odd, evidence.odd[0]])] == ["twice"]
    other = next(line for line in evidence.seen if line not in evidence.odd)
    assert [fault.partition(":")[0] for fault in by_tag(evidence.seen, [*evidence.odd, other])] == ["strange"]


def test_witnesses_of_a_good_run_agree(evidence: Evidence) -> None:
    told = read_told(evidence.told)
    assert len(told.begun) >= 1_000
    assert len(told.committed) + len(told.rolled_back) == len(told.begun)
    assert sum(record["kind"] == "base" for record in evidence.records) > 1
    assert on_the_wire(evidence.told, evidence.seen) == []
    assert in_the_log(evidence.told, evidence.records) == []


# --- what is planted -----------------------------------------------------------------------------------------------


def begun(told: Lines, verdict: int, at_least: int) -> str:
    """A transaction with this true verdict and so many messages."""
    return next(
        tx_id for tx_id, count in read_told(told).begun.items() if verdict_of(tx_id) == verdict and count >= at_least
    )


def made_up(verdict: int) -> str:
    return next(f"planted-{number}" for number in range(1_000) if verdict_of(f"planted-{number}") == verdict)


def all_messages_gone(told: Lines, seen: Lines) -> None:
    unique = begun(told, COMMIT, 2) + "."
    seen[:] = [line for line in seen if not line.split()[3].startswith(unique)]


def one_message_gone(told: Lines, seen: Lines) -> None:
    unique = begun(told, COMMIT, 2) + ".1"
    seen[:] = [line for line in seen if line.split()[3] != unique]


def acknowledged_and_never_there(told: Lines, seen: Lines) -> None:
    told += [f"B {made_up(COMMIT)} 2", f"C {made_up(COMMIT)} 99999999"]


def seen_again_elsewhere(told: Lines, seen: Lines) -> None:
    topic, queue, _, unique, tx_id = seen[10].split()
    seen.append(f"{topic} {queue} 999999 {unique} {tx_id}")


def rolled_back_message_seen(told: Lines, seen: Lines) -> None:
    tx_id = next(tx_id for tx_id in read_told(told).begun if verdict_of(tx_id) != COMMIT)
    seen.append(f"CrashA 0 999999 {tx_id}.0 {tx_id}")


def nobodys_message_seen(told: Lines, seen: Lines) -> None:
    seen.append("CrashA 0 999999 nobody-7.0 nobody-7")


def one_message_more_than_sent(told: Lines, seen: Lines) -> None:
    tx_id = begun(told, COMMIT, 1)
    seen.append(f"CrashA 0 999999 {tx_id}.{read_told(told).begun[tx_id]} {tx_id}")


def offsets_skipped(told: Lines, seen: Lines) -> None:
    seen.append("GAP CrashA 0 5 9")


def rollback_acknowledged_as_commit(told: Lines, seen: Lines) -> None:
    at = next(at for at, line in enumerate(told) if line.startswith("R "))
    told[at] = "C" + told[at][1:]


def commit_acknowledged_as_rollback(told: Lines, seen: Lines) -> None:
    at = next(at for at, line in enumerate(told) if line.startswith("C "))
    told[at] = "R" + told[at][1:]


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (all_messages_gone, "lost"),
        (acknowledged_and_never_there, "lost"),
        (one_message_gone, "torn"),
        (seen_again_elsewhere, "twice"),
        (rolled_back_message_seen, "shown"),
        (nobodys_message_seen, "strange"),
        (one_message_more_than_sent, "strange"),
        (offsets_skipped, "strange"),
        (rollback_acknowledged_as_commit, "strange"),
        (commit_acknowledged_as_rollback, "strange"),
    ],
)
def test_look_at_the_wire_goes_red(plant: Callable[[Lines, Lines], None], promise: str, evidence: Evidence) -> None:
    told, seen = list(evidence.told), list(evidence.seen)
    plant(told, seen)
    assert [fault.partition(":")[0] for fault in on_the_wire(told, seen)] == [promise]


def nth(records: Records, kind: str, number: int = 20) -> int:
    """Where the record of that kind is."""
    return [at for at, record in enumerate(records) if record["kind"] == kind][number]


def commit_record_gone(told: Lines, records: Records) -> None:
    del records[nth(records, "committed")]


def rollback_record_gone(told: Lines, records: Records) -> None:
    del records[nth(records, "rolled_back")]


def halves_and_verdict_gone(told: Lines, records: Records) -> None:
    tx_id = records[nth(records, "committed")]["tx_id"]
    records[:] = [record for record in records if record.get("tx_id") != tx_id]


def acknowledged_and_not_written(told: Lines, records: Records) -> None:
    told += [f"B {made_up(COMMIT)} 2", f"C {made_up(COMMIT)} 99999999"]


def commit_in_another_place_than_acknowledged(told: Lines, records: Records) -> None:
    records[nth(records, "committed")]["offset"] += 8


def commit_became_rollback(told: Lines, records: Records) -> None:
    records[nth(records, "committed")]["kind"] = "rolled_back"


def second_commit_record(told: Lines, records: Records) -> None:
    again = dict(records[nth(records, "committed")])
    refs = [dict(ref, queue_offset=ref["queue_offset"] + 1_000_000) for ref in again["refs"]]
    records.append(dict(again, offset=99_999_999, refs=refs))


def rollback_behind_the_commit(told: Lines, records: Records) -> None:
    tx_id = records[nth(records, "committed")]["tx_id"]
    records.append(dict(records[nth(records, "rolled_back")], tx_id=tx_id, offset=99_999_999))


def half_twice(told: Lines, records: Records) -> None:
    records.insert(nth(records, "half") + 5, dict(records[nth(records, "half")]))


def place_taken_twice(told: Lines, records: Records) -> None:
    first, second = (records[nth(records, "committed", number)]["refs"][0] for number in (20, 21))
    second.update({name: first[name] for name in ("topic_id", "queue_id", "queue_offset")})


def commit_without_one_message(told: Lines, records: Records) -> None:
    next(record for record in records if len(record.get("refs", ())) > 1)["refs"].pop()


def commit_with_one_message_twice(told: Lines, records: Records) -> None:
    refs = next(record for record in records if len(record.get("refs", ())) > 1)["refs"]
    refs[1] = dict(refs[0], queue_offset=refs[0]["queue_offset"] + 1_000_000)


def rolled_back_is_committed(told: Lines, records: Records) -> None:
    tx_id = made_up(12)
    told.append(f"B {tx_id} 1")
    commit = next(record for record in records if len(record.get("refs", ())) == 1)
    ref = dict(commit["refs"][0], queue_offset=1_000_000)
    records.append(dict(commit, tx_id=tx_id, offset=99_999_999, refs=[ref]))


@pytest.mark.parametrize(
    ("plant", "promises"),
    [
        (commit_record_gone, {"lost", "undecided"}),
        (rollback_record_gone, {"lost", "undecided"}),
        (halves_and_verdict_gone, {"lost"}),
        (acknowledged_and_not_written, {"lost"}),
        (commit_in_another_place_than_acknowledged, {"lost"}),
        (commit_became_rollback, {"lost"}),
        (second_commit_record, {"twice"}),
        (rollback_behind_the_commit, {"twice"}),
        (half_twice, {"twice"}),
        (place_taken_twice, {"twice"}),
        (commit_without_one_message, {"torn"}),
        (commit_with_one_message_twice, {"torn"}),
        (rolled_back_is_committed, {"shown"}),
    ],
)
def test_look_at_the_log_goes_red(
    plant: Callable[[Lines, Records], None], promises: set[str], evidence: Evidence
) -> None:
    told, records = list(evidence.told), json.loads(json.dumps(evidence.records))
    plant(told, records)
    assert {fault.partition(":")[0] for fault in in_the_log(told, records)} == promises


@pytest.mark.parametrize("number", [20, -1])
def test_log_that_lost_its_tail_goes_red(number: int, evidence: Evidence, tmp_path: Path) -> None:
    """As after a broker that answered before it wrote: what is there is whole, and too short."""
    copy = shutil.copytree(evidence.data, tmp_path / "data")
    cut = evidence.records[nth(evidence.records, "committed", number)]
    segments = sorted((copy / "shard-0" / "log").glob("*.seg"))
    index, at = divmod(cut["batch"], SEGMENT_BYTES)
    with segments[index].open("r+b") as file:
        file.seek(at)
        file.write(bytes(SEGMENT_BYTES - at))
    records = dump(copy)
    assert records[-1]["offset"] < cut["batch"]
    faults = in_the_log(evidence.told, records)
    assert any(fault.startswith(f"lost: {cut['tx_id']}") for fault in faults), faults
