"""Retention waits for a consumer group that holds a topic, within limits: real segments, restarts, our client, and a Spark reader."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.in_process import Running, ShiftedClock, serving
from tests.support.raw_client import RawClient
from tests.support.waiting import until

from halfmq.client.admin import hold_retention, release_retention
from halfmq.client.async_client import AsyncClient
from halfmq.errors import UsageError
from halfmq.model.settings import BrokerSettings, GroupSettings
from halfmq.runtime.disk import RealDisk
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqStreamReader
from halfmq.store.store import Store

SEGMENT = 1 << 16
MESSAGES = 48
#: Retention removes every full segment at once, and looks often.
EAGER: dict[str, Any] = {
    "segment_bytes": SEGMENT, "retention_bytes": 1, "retention_check_ms": 3, "checkpoint_interval_ms": 5,
    "settings": BrokerSettings(dedup_window_ms=0),
}  # fmt: skip


class Looks:
    """Counts the looks at retention."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen = 0
        closed_segments = Store.closed_segments

        def counted(store: Store) -> Any:
            self._seen += 1
            return closed_segments(store)

        monkeypatch.setattr(Store, "closed_segments", counted)

    async def more(self, count: int = 12) -> None:
        wanted = self._seen + count
        await until(lambda: self._seen >= wanted)


async def fill(client: RawClient, count: int = MESSAGES, topic: str = "orders") -> None:
    """About six segments, in one queue."""
    for _ in range(count):
        assert (await client.send(topic, bytes(8_000), queue=0, queues=1)).code == 0


async def read_to(client: RawClient, offset: int, group: str = "archive") -> None:
    fields = {"consumerGroup": group, "topic": "orders", "queueId": "0", "commitOffset": str(offset)}
    assert (await client.ask(15, fields)).code == 0


async def first(client: RawClient) -> int:
    return int((await client.ask(31, {"topic": "orders", "queueId": "0"})).ext["offset"])


async def change(client: RawClient, attributes: str) -> None:
    body = f'{{"groupName":"archive","attributes":{attributes}}}'.encode()
    assert (await client.ask(200, body=body)).code == 0


HOLD = '{"+hold.topics":"orders"}'


async def trimmed_to_the_end(running: Running, client: RawClient) -> None:
    await until(lambda: running.state.log_start >= running.state.log_end // SEGMENT * SEGMENT - SEGMENT)


async def test_what_a_group_has_not_read_stays_also_after_restarts_and_what_it_has_read_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Looks(monkeypatch)
    async with serving(tmp_path, **EAGER) as running:
        client = await running.client()
        await change(client, HOLD)  # before there is a topic
        await fill(client)
        await looks.more()
        assert (await first(client), running.state.log_start) == (0, 0)
        said = [line for line in caplog.messages if "retention waits for consumer group archive" in line]
        assert len(said) == 1, "however often it looked"
        assert "of queue 0 of topic orders" in said[0]
        assert "halfmq group release archive" in said[0]
        await read_to(client, 20)
        await until(lambda: running.state.log_start > 0)
        await looks.more()
        assert 20 - SEGMENT // 8_000 <= await first(client) <= 20
        start = running.state.log_start
    for _ in range(2):
        async with serving(tmp_path, **EAGER) as running:
            client = await running.client()
            await fill(client, 8)
            await looks.more()
            assert running.state.log_start == start
            assert (await client.pull("orders", 20, count=1)).code == 0
    async with serving(tmp_path, **EAGER) as running:
        client = await running.client()
        await read_to(client, MESSAGES + 16)
        await trimmed_to_the_end(running, client)
        await fill(client)
        await change(client, '{"-hold.topics":""}')
        await trimmed_to_the_end(running, client)
        assert await first(client) > MESSAGES + 16, "nothing waits any more"
    assert not [line for line in caplog.messages if "loses" in line]


async def test_without_a_hold_retention_does_not_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, **EAGER) as running:
        client = await running.client()
        await change(client, '{"+hold.topics":"stock"}')
        await fill(client)
        await read_to(client, 1)
        await trimmed_to_the_end(running, client)
        assert await first(client) > 20


def nearly_full(monkeypatch: pytest.MonkeyPatch, running: Running, clock: ShiftedClock) -> None:
    free = RealDisk.free_bytes
    monkeypatch.setattr(RealDisk, "free_bytes", lambda disk, directory: min(free(disk, directory), SEGMENT))


def old(monkeypatch: pytest.MonkeyPatch, running: Running, clock: ShiftedClock) -> None:
    clock.passed_ms += 8 * 86_400_000


def small_disk(monkeypatch: pytest.MonkeyPatch, running: Running, clock: ShiftedClock) -> None:
    """Nobody set ``--hold-bytes``: half of the file system."""
    monkeypatch.setattr(RealDisk, "total_bytes", lambda disk, directory: 9 * SEGMENT)


def nothing(monkeypatch: pytest.MonkeyPatch, running: Running, clock: ShiftedClock) -> None:
    """The limit by size needs no event."""


@pytest.mark.parametrize(
    ("event", "config"),
    [(old, {}), (nothing, {"hold_bytes": 3 * SEGMENT}), (small_disk, {}), (nearly_full, {})],
    ids=["age", "size", "size by default", "nearly full"],
)
async def test_a_limit_ends_a_hold_and_names_what_is_lost_once(
    event: Any,
    config: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks, clock = Looks(monkeypatch), ShiftedClock()
    async with serving(tmp_path, clock=clock, **{**EAGER, **config}) as running:
        client = await running.client()
        await change(client, HOLD)
        await fill(client, 4)
        await read_to(client, 3)
        await fill(client)
        if event is not nothing:
            await looks.more()
            assert running.state.log_start == 0
        event(monkeypatch, running, clock)
        await until(lambda: running.state.log_start > 0)
        await looks.more(30)
        kept = await first(client)
        said = [line for line in caplog.messages if "consumer group archive held messages of topic orders" in line]
        assert said
        assert "loses" in said[0]
        assert "3 to " in said[0]
        lost = [tuple(map(int, line.split("read: ")[1].split(" of queue 0")[0].split(" to "))) for line in said]
        assert [one[0] for one in lost] == [3, *[one[1] + 1 for one in lost[:-1]]], "each message once"
        assert lost[-1][1] + 1 == kept
        if event in (nothing, small_disk):
            assert running.state.log_end - running.state.log_start >= 3 * SEGMENT, "no more than the limit demands"
        if event is nearly_full:
            monkeypatch.undo()
            looks = Looks(monkeypatch)
            start = running.state.log_start
            await looks.more()
            await fill(client, 16)
            await looks.more()
            assert running.state.log_start == start, "with space again it waits again"


async def test_a_hold_that_begins_while_messages_are_copied_stops_the_trim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: after the reply nothing unread is removed. Method: retention has decided, and copies forward, when the hold is set."""
    looks = Looks(monkeypatch)
    async with serving(tmp_path, **{**EAGER, "retention_check_ms": 3_600_000}) as running:
        client = await running.client()
        await fill(client)
        maintenance = running.broker._maintenance
        assert maintenance is not None
        await until(lambda: maintenance._checkpoint_at >= running.state.log_end)
        before = looks._seen
        held_up = []
        monkeypatch.setattr(maintenance, "_copy_forward", lambda: held_up.append(maintenance._trimming))
        maintenance.check_retention()
        assert held_up[0] > 0
        assert looks._seen == before + 1
        await change(client, HOLD)
        monkeypatch.undo()
        maintenance._copy_forward()
        await until(lambda: maintenance._trimming is None)
        assert running.state.log_start == 0
        assert await first(client) == 0
        await change(client, '{"-hold.topics":""}')
        maintenance.check_retention()
        await until(lambda: running.state.log_start > 0)


async def test_our_client_sets_and_clears_a_hold(tmp_path: Path) -> None:
    async with serving(tmp_path) as running, AsyncClient(f"rocketmq://127.0.0.1:{running.ports.names}") as mq:
        await hold_retention(mq, "archive", ["stock", "orders"], max_age_s=60)
        held = GroupSettings("archive", hold_topics=("orders", "stock"), hold_ms=60_000)
        assert running.state.groups["archive"] == held
        await release_retention(mq, "archive")
        assert running.state.groups["archive"] == GroupSettings("archive")
        await hold_retention(mq, "archive", "orders")
        assert running.state.groups["archive"].hold_topics == ("orders",), "not a topic for each letter"
        with pytest.raises(ValueError, match="release_retention"):
            await hold_retention(mq, "archive", [])


def options(running: Running, **more: str) -> Any:
    given = {
        "url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": "orders", "startingOffsets": "earliest",
        "group": "revenue", "publishPosition": "true", "hold": "true", **more,
    }  # fmt: skip
    if "subscribePattern" in more:
        del given["subscribe"]
    return parse_options(given).for_stream()


async def test_a_query_holds_from_its_start_and_lets_go_as_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    async with serving(tmp_path, **EAGER) as running:
        client = await running.client()
        assert (await client.send("orders", b"x", queue=0, queues=1)).code == 0
        reader = HalfmqStreamReader(options(running))
        limit = reader.getDefaultReadLimit()
        start = await asyncio.to_thread(reader.initialOffset)
        batch = await asyncio.to_thread(reader.latestOffset, start, limit)
        assert running.state.groups["revenue"].hold_topics == ("orders",)
        await fill(client)
        await looks.more()
        assert running.state.log_start == 0
        last = await asyncio.to_thread(reader.latestOffset, batch, limit)
        await asyncio.to_thread(reader.commit, last)
        await trimmed_to_the_end(running, client)
        reader.stop()
        await fill(client)
        await looks.more()
        again = HalfmqStreamReader(options(running))  # a restart of the query, with its checkpoint
        end = await asyncio.to_thread(again.latestOffset, last, limit)
        assert end != last, "nothing was lost meanwhile, or this had failed"
        again.stop()


async def test_a_query_that_starts_again_from_an_earlier_offset_holds_from_there(tmp_path: Path) -> None:
    """Also one that starts at the latest offsets, in a topic from which it will get nothing for days."""
    async with serving(tmp_path) as running:
        client = await running.client()
        await fill(client, 5)
        key = (running.state.topics_by_name["orders"].topic_id, 0)

        def published() -> int | None:
            offset = running.state.session.fresh_offsets.get("revenue", {}).get(key)
            return running.state.offsets.get("revenue", {}).get(key) if offset is None else offset

        for offsets, at in (("latest", 5), ("earliest", 0), ('{"orders": {"0": 2}}', 2)):
            reader = HalfmqStreamReader(options(running, startingOffsets=offsets))
            start = await asyncio.to_thread(reader.initialOffset)
            await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())
            await until(lambda: published() == at)  # noqa: B023 - awaited here
            reader.stop()


async def test_a_query_with_a_pattern_holds_topics_as_they_come(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        reader = HalfmqStreamReader(options(running, subscribePattern="or.*"))
        limit = reader.getDefaultReadLimit()
        start = await asyncio.to_thread(reader.initialOffset)
        assert "revenue" not in running.state.groups
        for topic in ("orders", "origins", "stock"):
            await fill(client, 1, topic)
            start = await asyncio.to_thread(reader.latestOffset, start, limit)
        assert running.state.groups["revenue"].hold_topics == ("orders", "origins")
        await change_age(client)
        await fill(client, 1, "orbits")
        await asyncio.to_thread(reader.latestOffset, start, limit)
        held = running.state.groups["revenue"]
        assert (held.hold_topics, held.hold_ms) == (("orbits", "orders", "origins"), 5_000), "an operator's limit stays"
        reader.stop()


async def change_age(client: RawClient) -> None:
    body = b'{"groupName":"revenue","attributes":{"+hold.ms":"5000"}}'
    assert (await client.ask(200, body=body)).code == 0


def test_a_query_that_does_not_say_where_it_is_cannot_hold() -> None:
    with pytest.raises(UsageError, match="position") as caught:
        parse_options({"url": "rocketmq://h:1", "subscribe": "T", "group": "g", "hold": "true"})
    assert "publishPosition" in (caught.value.hint or "")
