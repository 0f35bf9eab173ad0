"""The reader has several raw reads in flight: how many, where they begin, and what becomes of them when one returns no messages."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import Running, serving

from halfmq.client.blocking import RawConnection
from halfmq.errors import ProtocolError
from halfmq.spark.network import raw_reader
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import parse_options
from halfmq.spark.plan.partitions import QueueRange, Ranges
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.wire.remoting.codes import HMQ_POSITION

ROWS = 100


class Watch:
    """What the reader sends and receives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        #: (first offset or -1, in flight with it).
        self.sent: list[tuple[int, int]] = []
        self.codes: list[int] = []
        self.most = 0
        self._in_flight = 0
        opened, send, head = RawConnection.open, raw_reader.RawReader._send, RawConnection.head

        def open_(address: Any, tls: Any) -> RawConnection:
            self.opened += 1
            self._in_flight = 0
            return opened(address, tls)

        def sent(reader: Any, connection: Any, wanted: Any) -> None:
            self._in_flight += 1
            self.most = max(self.most, self._in_flight)
            self.sent.append((wanted.first, self._in_flight))
            send(reader, connection, wanted)

        def received(connection: Any) -> Any:
            answer = head(connection)
            self._in_flight -= 1
            self.codes.append(answer.code)
            return answer

        monkeypatch.setattr(RawConnection, "open", staticmethod(open_))
        monkeypatch.setattr(raw_reader.RawReader, "_send", sent)
        monkeypatch.setattr(RawConnection, "head", received)
        monkeypatch.setattr(raw_reader, "ANSWER_BYTES", 2_500)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


async def filled(running: Running) -> str:
    """``ROWS`` messages in each of two topics. The first of U are large: then fewer responses follow than their number suggests.
    Returns the id of the store.
    """
    client = await running.client()
    for number in range(ROWS // 2):
        for topic in ("T", "U"):
            await client.send(topic, b"%d" % number + bytes(1_000 if topic == "U" and number < 40 else 0))
    run = await QueryRun.begin(client)
    for topic in ("T", "U"):
        assert (await run.prepare(0, "0.1", messages(topic, ROWS // 2), topic=topic)).code == 0
    assert (await run.decide(0, "0.1")).code == 0
    return (await client.ask(HMQ_POSITION, {"topics": "T"})).ext["store"]


def offsets_of(running: Running, store: str, *ranges: tuple[str, int, int]) -> list[tuple[str, int]]:
    options = parse_options({"url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": "T,U"})
    reader = WireReader(options, RetryDeadline(2_000))
    wanted = tuple(
        QueueRange(topic, running.state.topics_by_name[topic].topic_id, "", 0, start, end)
        for topic, start, end in ranges
    )
    try:
        return [
            (rows.topic, offset)
            for rows in reader.read(Ranges(store, wanted), lambda text: None)
            for offset in rows.queue_offsets.tolist()
        ]
    finally:
        reader.close()


async def test_two_requests_are_in_flight_beside_a_response_and_the_connection_is_kept(
    tmp_path: Path, watch: Watch
) -> None:
    async with serving(tmp_path) as running:
        store = await filled(running)
        found = await asyncio.to_thread(offsets_of, running, store, ("T", 0, ROWS), ("U", 3, 44), ("T", 50, 60))
    assert found == [
        *(("T", at) for at in range(ROWS)),
        *(("U", at) for at in range(3, 44)),
        *(("T", at) for at in range(50, 60)),
    ]
    assert watch.opened == 1
    assert watch.most == raw_reader.IN_FLIGHT
    assert [first for first, _ in watch.sent[:4]] == [0, 9, -1, -1], (
        "the first response says that the broker can continue"
    )
    assert watch.codes.count(0) + watch.codes.count(19) == len(watch.codes) == len(watch.sent)
    assert 1 <= watch.codes.count(19) <= 3 * (raw_reader.IN_FLIGHT - 1), "at the end of a range few are too many"


async def test_a_range_that_ends_early_is_told_and_what_is_in_flight_is_dropped(tmp_path: Path, watch: Watch) -> None:
    """The topic is deleted while requests are in flight: a loss by name, and the next range is read on a new connection."""
    async with serving(tmp_path) as running:
        store, topic_id = await filled(running), running.state.topics_by_name["T"].topic_id
        lost: list[str] = []
        options = parse_options({"url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": "T,U"})
        reader = WireReader(options, RetryDeadline(2_000))
        ranges = (
            QueueRange("T", topic_id, "", 0, 0, ROWS),
            QueueRange("U", running.state.topics_by_name["U"].topic_id, "", 0, 0, ROWS),
        )
        rows = reader.read(Ranges(store, ranges), lost.append)
        first = await asyncio.to_thread(next, rows)
        assert first.queue_offsets[0] == 0
        await (await running.client()).ask(215, {"topic": "T"})
        found = await asyncio.to_thread(lambda: [(one.topic, at) for one in rows for at in one.queue_offsets.tolist()])
        reader.close()
    assert [at for topic, at in found if topic == "U"] == list(range(ROWS))
    assert len([at for topic, at in found if topic == "T"]) < ROWS
    assert len(lost) == 1, lost
    assert "T" in lost[0]


async def test_messages_after_the_end_of_a_range_are_an_error(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that ignores the end of a range is not believed."""
    sent = raw_reader.RawReadFields

    def longer(*fields: Any) -> Any:
        made = sent(*fields)
        return replace(made, end=made.end + ROWS) if made.continues else made

    monkeypatch.setattr(raw_reader, "RawReadFields", longer)
    async with serving(tmp_path) as running:
        store = await filled(running)
        with pytest.raises(ProtocolError, match="a response"):
            await asyncio.to_thread(offsets_of, running, store, ("T", 0, 60), ("T", 60, 80), ("U", 0, ROWS))
