"""The log of a broker with half batches, compared with what a reader of its queues received; nobody recorded the query."""

import asyncio
import json
from pathlib import Path

from msgspec.structs import replace
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import serving
from tests.support.raw_client import RawClient, property_string
from tests.support.waiting import until

from halfmq.model import properties
from halfmq.model.stored_message import decode
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from halfmq.store.verify import verify_store
from halfmq.testing.history import check_events
from halfmq.testing.history.events import AnyEvent, FileStarted, Logged, QueueRead, Seen
from halfmq.testing.history.logged import log_events


async def received(client: RawClient, queue: int) -> list[AnyEvent]:
    """What a reader of the whole queue records."""
    found: list[AnyEvent] = []
    while True:
        pulled = await client.pull("T", len(found), queue=queue)
        if pulled.code != 0:
            end = len(found)
            return [*found, QueueRead(t_us=9, by="r", reader="r", topic="T", queue=queue, first=0, end=end)]
        at = 0
        while at < len(pulled.body):
            message, offset, size = decode(pulled.body, at)
            at += size
            unique = properties.to_dict(message.properties)["UNIQ_KEY"]
            found.append(
                Seen(
                    t_us=5, by="r", reader="r", message=unique, topic="T", queue=queue, queue_offset=message.queue_offset,
                    offset=offset, crc=message.body_crc,
                )
            )  # fmt: skip


async def a_store(directory: Path) -> list[AnyEvent]:
    """Two runs, losers, a decision on halves that were copied, an undecided batch; and what a reader received."""
    async with serving(directory, segment_bytes=1 << 16) as running:
        client = await running.client()
        old = await QueryRun.begin(client, run="r1")
        await old.prepare(0, "0.1", messages("old", 2))
        run = await QueryRun.begin(client, run="r2")
        await run.prepare(0, "0.1", messages("a", 3))
        await run.prepare(0, "0.2", messages("loser", 3))
        await run.prepare(0, "1.1", messages("b", 2), queue=1)
        other = await QueryRun.begin(client, query="other")
        for _ in range(7):
            assert (await other.prepare(0, "0.1", messages("undecided" * 100, 10))).code == 0
        assert running.state.log_end > 1 << 16
        assert (await run.decide(0, "0.1", "1.1")).code == 0
        await run.prepare(1, "0.1", messages("later", 2))
        events = [event for queue in (0, 1) for event in await received(client, queue)]
    return [FileStarted(t_us=0, by="r"), *events]


def test_what_the_log_shows_was_received_and_nothing_else_is_reported(tmp_path: Path) -> None:
    events = asyncio.run(a_store(tmp_path))
    log = list(log_events(RealDisk(), tmp_path))
    shown = [event for event in log if isinstance(event, Logged) and event.kind == "batched"]
    seen = [event for event in events if isinstance(event, Seen)]
    assert {(one.message, one.queue, one.queue_offset, one.offset, one.crc) for one in shown} == {
        (one.message, one.queue, one.queue_offset, one.offset, one.crc) for one in seen
    }
    assert len(shown) == len(seen) == 5
    verdicts = [event for event in log if isinstance(event, Logged) and event.kind in ("commit", "rollback")]
    assert [(one.kind, one.tx, one.decided_by) for one in verdicts] == [
        ("rollback", "q1:0:r1", "query"), ("commit", "q1:0:r2", "query"),
    ]  # fmt: skip
    report = check_events([*events, *log])
    assert report.clean, report.violations[0].text()


async def a_store_with_delays(directory: Path) -> list[AnyEvent]:
    """A decision on messages of which two are released, in another order than they were sent, and one is still waiting."""
    async with serving(directory) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        late = [
            one._replace(properties=one.properties + property_string(TIMER_DELAY_MS=str(delay)).encode())
            for one, delay in zip(messages("late", 3), (90, 1, 3_000_000), strict=True)
        ]
        assert (await run.prepare(0, "0.1", late, delayed=1)).code == 0
        assert (await run.prepare(0, "0.1", messages("now", 2))).code == 0
        assert (await run.decide(0, "0.1")).code == 0
        await until(lambda: len(running.state.delayed) == 1)
        return [FileStarted(t_us=0, by="r"), *await received(client, 0)]


def test_delayed_messages_have_no_place_in_the_log_until_they_are_released(tmp_path: Path) -> None:
    events = asyncio.run(a_store_with_delays(tmp_path))
    log = list(log_events(RealDisk(), tmp_path))
    shown = {event.message: event for event in log if isinstance(event, Logged) and event.kind == "batched"}
    places = [(one[:4], event.queue_offset) for one, event in shown.items()]
    assert places == [("late", -1), ("late", -1), ("late", -1), ("now0", 0), ("now0", 1)]
    seen = [event for event in events if isinstance(event, Seen)]
    assert [event.message for event in seen] == [f"now{0:032d}", f"now{1:032d}", f"late{1:032d}", f"late{0:032d}"]
    assert all(event.offset == shown[event.message].offset for event in seen)
    report = check_events([*events, *log])
    assert report.clean, report.violations[0].text()


def test_a_delayed_message_in_another_queue_or_at_two_places_is_reported(tmp_path: Path) -> None:
    events = asyncio.run(a_store_with_delays(tmp_path))
    log = list(log_events(RealDisk(), tmp_path))
    late = next(event for event in events if isinstance(event, Seen) and event.message.startswith("late"))
    for places in ([replace(late, queue=1)], [late, replace(late, queue_offset=9)]):
        others = [event for event in events if event is not late]
        report = check_events([*others, *places, *log])
        assert ("duplicate", late.message) in {(one.kind, one.message) for one in report.violations}


def test_dump_says_the_delays_of_a_half_batch(tmp_path: Path) -> None:
    asyncio.run(a_store_with_delays(tmp_path))
    lines = [json.loads(line) for line in dump_store(RealDisk(), tmp_path)]
    found = [(line["kind"], line["delays"]) for line in lines if "delays" in line]
    assert found == [("half_batch", [90, 1, 3_000_000]), ("half_batch", [])]
    (decided,) = [line for line in lines if line["kind"] == "decided"]
    assert [ref["queue_offset"] for ref in decided["refs"]] == [-1, 0]
    assert not verify_store(RealDisk(), tmp_path).findings


def test_a_message_that_a_reader_missed_and_one_of_a_loser_are_reported(tmp_path: Path) -> None:
    events = asyncio.run(a_store(tmp_path))
    log = list(log_events(RealDisk(), tmp_path))
    missed = next(event for event in events if isinstance(event, Seen))
    report = check_events([*(event for event in events if event is not missed), *log])
    assert {(one.kind, one.message) for one in report.violations} == {("lost", missed.message)}
    loser = Seen(t_us=5, by="r", reader="r", message=f"loser{0:032d}", topic="T", queue=0, queue_offset=3, offset=1_000)
    report = check_events([*events, loser, *log])
    assert {(one.kind, one.message) for one in report.violations} == {("phantom", loser.message)}
