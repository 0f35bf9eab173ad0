"""Raw reads by the Spark source: the rows are those of pulls and of the files; and what happens when something is wrong."""

import asyncio
import dataclasses
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import ShiftedClock, serving
from tests.support.raw_client import send_ext
from tests.support.scripted_cluster import RawReads, stored
from tests.support.scripted_server import ScriptedServer
from tests.support.store_writer import V6
from tests.support.waiting import until, wait_until

from halfmq.errors import ConnectError, ProtocolError
from halfmq.model.queue_reads import Position, TopicBounds
from halfmq.spark.network import raw_reader
from halfmq.spark.network.pull_reader import PullReader
from halfmq.spark.network.wire_reader import WireReader
from halfmq.spark.options import COLUMNS, parse_options
from halfmq.spark.plan.partitions import QueueRange, Ranges
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.stored_rows import record_batch
from halfmq.spark.source import HalfmqBatchReader
from halfmq.wire.remoting import route
from halfmq.wire.remoting.codes import HMQ_POSITION, HMQ_RAW_READ, RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request, encode_response, encode_response_head
from halfmq.wire.remoting.position import encode_answer
from halfmq.wire.remoting.raw_read import (
    BETWEEN_BYTES,
    CHECKSUM_BYTES,
    HEAD_BYTES,
    body_bytes,
    complete_frame,
)

STORE = "ab" * 16
COMMIT = 8
GROUP = "g" * 120
LONG = "%RETRY%" + GROUP
TOPICS = ("orders", "loyalty")


# --- the same rows by all paths


async def fill(running: Any, clock: ShiftedClock) -> None:
    """Plain and transactional messages, delayed ones, compressed bodies, IPv6 hosts, a long topic name, and a half that is copied
    forward by retention, a half batch; and what must not be seen."""
    client = await running.client()
    made = await client.ask(200, {}, json.dumps({"groupName": GROUP, "retryQueueNums": 1}).encode())
    assert made.code == 0, made
    for topic in TOPICS:
        halves = [
            await client.half(topic, b"half %d" % n, unique=f"{topic[:3]}{n:029d}", TAGS="a", KEYS="k1 k2")
            for n in range(4)
        ]
        assert all(half.code == 0 for half in halves), halves
        for number in range(300):
            body = b"" if number == 7 else b"%d" % number * (number % 50)
            await client.send(topic, body, unique=f"P{topic[:3]}{number:028d}", TAGS="b", odd="\u00e9")
        packed = zlib.compress(b"packed " * 1_000)
        await client.ask(310, send_ext(topic, "P", 0, {"UNIQ_KEY": f"Z{topic[:3]:31}"}, sys_flag=1), packed)
        await client.send(topic, b"delayed", unique=f"D{topic[:3]:31}", DELAY="1")
        for n in (0, 1):
            await client.end(halves[n], f"{topic[:3]}{n:029d}", COMMIT)
        await client.end(halves[2], f"{topic[:3]}{2:029d}", 12)
    other = await running.client()
    connection = max(running.broker._peers.connected.values(), key=lambda one: one.number)
    connection.born_host = V6
    await other.send("orders", b"six", unique="S" * 32)
    run = await QueryRun.begin(client)
    assert (await run.prepare(0, "0.1", messages("batched", 20, TAGS="c"), topic="orders")).code == 0
    assert (await run.prepare(1, "0.1", messages("undecided", 20), topic="orders")).code == 0
    assert (await run.decide(0, "0.1")).code == 0
    # The halves of number 3 are copied from the first segment.
    for number in range(40):
        await other.send("other", b"x" * 60_000, unique=f"O{number:031d}")
    for number in range(5):
        assert (await other.send(LONG, b"again %d" % number, unique=f"R{number:031d}")).code == 0
    for topic in TOPICS:
        clock.passed_ms += 1
        await other.send(topic, b"last", unique=f"L{topic[:3]:31}")


def rows_of(options: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    reader = HalfmqBatchReader(parse_options(options | {"columns": ",".join(COLUMNS)}).for_batch())
    for part in reader.partitions():
        for batch in reader.read(part):
            found += batch.to_pylist()
    return found


async def test_rows_are_equal_by_raw_reads_pulls_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        await fill(running, clock)
        client = await running.client()
        for topic in TOPICS:
            # The same request again returns the place of the half, which is in the first segment.
            half = await client.half(topic, b"half 3", unique=f"{topic[:3]}{3:029d}", TAGS="a", KEYS="k1 k2")
            assert (await client.end(half, f"{topic[:3]}{3:029d}", COMMIT)).code == 0
        ends = [running.state.topics_by_name[topic] for topic in TOPICS]
        await until(lambda: [one.ends[0] for one in ends] == [327, 306])
        url = {"url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": ",".join((*TOPICS, LONG))}
        used: list[int] = []
        ask = raw_reader.RawReader._send
        monkeypatch.setattr(raw_reader.RawReader, "_send", lambda *given: (used.append(1), ask(*given))[1])
        monkeypatch.setattr(raw_reader, "ANSWER_BYTES", 20_000)
        raw = await asyncio.to_thread(rows_of, url)
        assert len(used) > 5
        del used[:]
        files = await asyncio.to_thread(rows_of, {"path": str(tmp_path), "subscribe": url["subscribe"]})
        pulled = await asyncio.to_thread(pulled_from, url["url"], url["subscribe"])
        assert used == []
    assert len(raw) == 327 + 306 + 5
    for row in raw:
        row["broker"] = None
    assert raw == files
    assert raw == pulled
    bodies = [row["value"] for row in raw]
    assert bodies.count(b"packed " * 1_000) == 2
    assert bodies.count(b"half 3") == bodies.count(b"delayed") == 2
    assert b"half 2" not in bodies
    assert sum(body.startswith(b"batched-") for body in bodies) == 20
    assert not any(body.startswith(b"undecided") for body in bodies)


def pulled_from(url: str, topics: str) -> list[dict[str, Any]]:
    """The rows as the reader of RocketMQ's brokers reads them, which gets the same messages from halfmq."""
    options = parse_options({"url": url, "subscribe": topics})
    reader = WireReader(options, RetryDeadline(2_000))
    snapshot = reader.snapshot()
    source = reader._source
    assert source is not None
    assert source.only is not None
    address = source.only.address
    pulls = PullReader(lambda topic, broker: address, reader._connections, RetryDeadline(2_000), options.group)
    found: list[dict[str, Any]] = []
    try:
        for (topic, queue), (start, end) in sorted(snapshot.queues.items(), key=lambda item: item[0]):
            one = QueueRange(topic, 0, "", int(queue), start, end)
            for rows in pulls.read_range(one, _no_loss):
                found += record_batch(rows, COLUMNS, _no_bad_body).to_pylist()
    finally:
        reader.close()
    return found


def _no_loss(text: str) -> None:
    raise AssertionError(text)


def _no_bad_body(offset: int, why: str) -> None:
    raise AssertionError(why)


# --- a scripted broker


@dataclasses.dataclass
class Broker:
    """One topic with one queue of ten messages, three in a response, of which the first two follow one another in the log."""

    store: str = STORE
    topic_id: int = 3
    #: In the messages.
    topic: str = "orders"
    first: int = 0
    end: int = 10
    knows_raw: bool = True
    #: Responses to raw reads that are changed: a function of the frame, taken from the front; None: unchanged.
    changes: list[Any] = dataclasses.field(default_factory=list)
    #: As for ``changes``: (code, ext) instead of messages.
    refuse: list[tuple[int, dict[str, object]]] = dataclasses.field(default_factory=list)
    raw_reads: RawReads = dataclasses.field(default_factory=RawReads)

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self.answer)

    @property
    def firsts(self) -> list[int]:
        return self.raw_reads.firsts

    def answer(self, request: Request[Any]) -> bytes | None:
        match request.code:
            case int() if request.code == HMQ_POSITION:
                topics = {"orders": TopicBounds(self.topic_id, ((self.first, self.end),))}
                ext, body = encode_answer(Position(self.store, 2, 500, topics))
                return encode_response(request, 0, ext=ext, body=body)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                brokers = (route.BrokerData("c", "broker-a", {0: f"127.0.0.1:{self.server.port}"}),)
                return encode_response(request, 0, body=route.encode_cluster_info(brokers, 401))
            case int() if request.code == HMQ_RAW_READ and self.knows_raw:
                return self.raw(request)
        return encode_response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")

    def raw(self, request: Request[Any]) -> bytes | None:
        if self.refuse:
            code, ext = self.refuse.pop(0)
            return encode_response(request, code, "refused by the test", ext)
        frame = self.raw_reads.answer(
            request, self.store, self.topic_id, (self.first, self.end), 3,
            lambda count: {1: [1], 2: [2], 3: [2, 1]}[count], lambda number: stored(number, topic=self.topic),
        )  # fmt: skip
        change = self.changes.pop(0) if self.changes else None
        return frame if change is None else change(frame)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.server.close()


def read(
    broker: Broker, start: int = 0, end: int = 10, *, store: str = STORE, topic_id: int = 3, timeout_ms: int = 2_000
) -> tuple[list[int], list[str]]:
    lost: list[str] = []
    found = []
    options = parse_options({"url": broker.server.url, "subscribe": "orders"})
    reader = WireReader(options, RetryDeadline(timeout_ms))
    try:
        for rows in reader.read(Ranges(store, (QueueRange("orders", topic_id, "", 0, start, end),)), lost.append):
            for row in record_batch(rows, ("offset", "value"), lambda offset, why: None).to_pylist():
                assert row["value"] == b"body %d" % row["offset"]
                found.append(row["offset"])
            if rows.queue_offsets[0] == start:
                assert rows.store_times_ms[0] == 1_000 + start
                assert rows.transactional.tolist() == [offset % 2 == 0 for offset in rows.queue_offsets.tolist()]
    finally:
        reader.close()
    return found, lost


def flipped(place: int) -> Any:
    return lambda frame: frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]


def test_a_range_is_read_in_several_responses_and_not_beyond_its_end(broker: Broker) -> None:
    assert read(broker, 2, 9) == ([2, 3, 4, 5, 6, 7, 8], [])
    assert broker.firsts == [2, 5, 8]


def test_messages_with_a_long_topic_name_have_another_layout(broker: Broker) -> None:
    broker.topic = "t" * 200
    assert read(broker) == (list(range(10)), [])


def test_the_next_request_is_sent_before_the_response_is_decoded(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = raw_reader.RawReader._send
    monkeypatch.setattr(raw_reader.RawReader, "_send", lambda *given: sent.append(1) or send(*given))
    lost: list[str] = []
    reader = WireReader(parse_options({"url": broker.server.url, "subscribe": "orders"}), RetryDeadline(2_000))
    rows = reader.read(Ranges(STORE, (QueueRange("orders", 3, "", 0, 0, 10),)), lost.append)
    assert next(rows).queue_offsets.tolist() == [0, 1, 2]
    assert len(sent) == 1 + raw_reader.IN_FLIGHT, "and no further one"
    wait_until(lambda: broker.firsts == [0, 3, 6])
    reader.close()


def test_a_wrong_checksum_is_read_again_on_a_new_connection(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.changes = [None, flipped(-1)]
    assert read(broker) == (list(range(10)), [])
    assert [broker.firsts.count(at) for at in (0, 3, 6)] == [1, 2, 2], "6 was in flight on the first connection"
    assert "wrong checksum" in caplog.text


def test_a_checksum_that_is_wrong_again_is_an_error(broker: Broker) -> None:
    broker.changes = [flipped(-1), flipped(-1), flipped(-1), flipped(-1)]
    with pytest.raises(ProtocolError, match="wrong checksum"):
        read(broker)
    assert broker.firsts.count(0) == 2


def test_a_broken_connection_is_opened_again(broker: Broker) -> None:
    broker.changes = [None, lambda frame: None]
    assert read(broker) == (list(range(10)), [])


def test_a_response_that_ends_early_is_read_again(broker: Broker) -> None:
    def cut(frame: bytes) -> None:
        broker.server._streams[-1].sendall(frame[:-3])

    broker.changes = [None, cut]
    assert read(broker) == (list(range(10)), [])


def test_a_busy_broker_is_waited_for(broker: Broker) -> None:
    broker.refuse = [(2, {})]
    assert read(broker) == (list(range(10)), [])
    broker.refuse = [(2, {})] * 100
    with pytest.raises(ConnectError):
        read(broker, timeout_ms=200)


def test_a_rocketmq_broker_at_the_address_is_another_store(broker: Broker) -> None:
    broker.knows_raw = False
    with pytest.raises(ConnectError, match="another store is at the address"):
        read(broker, timeout_ms=200)


def test_messages_past_retention_are_a_loss_by_name_and_reading_goes_on(broker: Broker) -> None:
    broker.first = 4
    assert read(broker) == ([4, 5, 6, 7, 8, 9], ["messages 0 to 3 of queue 0 of topic orders are past retention"])
    broker.first = 10
    assert read(broker, 2, 7) == ([], ["messages 2 to 6 of queue 0 of topic orders are past retention"])


def test_damage_that_the_broker_reports_is_a_loss_at_once_and_reading_goes_on_after_it(broker: Broker) -> None:
    broker.refuse = [(1, {"nextBeginOffset": 0})]
    found, lost = read(broker)
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert lost == ["message 0 of queue 0 of topic orders cannot be read: refused by the test"]


def test_what_is_no_message_is_a_loss_and_the_others_are_rows(broker: Broker) -> None:
    def changed(frame: bytes) -> bytes:
        at = frame.index(stored(1)) + 5
        return with_checksum(frame[:at] + b"\0" + frame[at + 1 :])

    broker.changes = [changed]
    found, lost = read(broker)
    assert found == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert len(lost) == 1
    assert "1 of the messages 1 to 1 of queue 0 of topic orders cannot be read" in lost[0]


def with_checksum(frame: bytes) -> bytes:
    """The frame with messages 0 to 2, after a change of its body."""
    messages = sum(len(stored(n)) for n in range(3))
    body_at = len(frame) - (CHECKSUM_BYTES + 3 * 48 + 2 * 4 + messages + BETWEEN_BYTES)
    body = frame[body_at + CHECKSUM_BYTES :]
    return frame[:body_at] + zlib.crc32(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("change", [-1, 1])
def test_an_entry_in_a_run_whose_offset_is_wrong_is_a_loss(broker: Broker, change: int) -> None:
    def changed(frame: bytes) -> bytes:
        offset = BETWEEN_BYTES + len(stored(0))
        at = frame.index(offset.to_bytes(8, "big"))
        return with_checksum(frame[:at] + (offset + change).to_bytes(8, "big") + frame[at + 8 :])

    broker.changes = [changed]
    found, lost = read(broker)
    assert found == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert len(lost) == 1
    assert "1 of the messages 1 to 1 of queue 0 of topic orders cannot be read" in lost[0]


@pytest.mark.parametrize("runs", [(1, 1), (0, 3), (3, 0), (2**32 - 1, 4), (1, 2)])
def test_runs_that_are_not_the_messages_are_refused(broker: Broker, runs: tuple[int, int]) -> None:
    def changed(frame: bytes) -> bytes:
        at = frame.index(bytes((0, 0, 0, 2, 0, 0, 0, 1)))
        return with_checksum(frame[:at] + b"".join(count.to_bytes(4, "big") for count in runs) + frame[at + 8 :])

    broker.changes = [changed]
    if runs == (1, 2):  # as many messages, at other places
        assert read(broker)[0] == [0, 3, 4, 5, 6, 7, 8, 9]
        return
    with pytest.raises(ProtocolError, match="in its runs"):
        read(broker)


def test_another_store_and_another_topic_are_losses_by_name(broker: Broker) -> None:
    broker.store = "cd" * 16
    found, lost = read(broker)
    assert (found, len(lost)) == ([], 1)
    assert "but store " + STORE + " was planned" in lost[0]
    broker.store = STORE
    broker.topic_id = 4
    found, lost = read(broker)
    assert found == []
    assert "deleted and created again: messages 0 to 9" in lost[0]


def test_another_store_in_the_middle_of_a_range_is_noticed(broker: Broker) -> None:
    def replaced(frame: bytes) -> bytes:
        broker.store = "cd" * 16
        return frame

    broker.changes = [replaced]
    found, lost = read(broker)
    assert found == [0, 1, 2], "what the planned store sent"
    assert len(lost) == 1


def test_a_range_of_one_of_several_brokers_is_read_from_its_store_only(broker: Broker) -> None:
    def replaced(frame: bytes) -> bytes:
        broker.store = "cd" * 16
        return frame

    broker.changes = [None, replaced]
    lost: list[str] = []
    reader = WireReader(parse_options({"url": broker.server.url, "subscribe": "orders"}), RetryDeadline(2_000))
    part = Ranges("", (QueueRange("orders", 3, "broker-a", 0, 0, 10),), {"broker-a": STORE})
    found = [(rows.broker, offset) for rows in reader.read(part, lost.append) for offset in rows.queue_offsets.tolist()]
    reader.close()
    assert found == [("broker-a", offset) for offset in range(6)], "what the planned store sent"
    assert lost == [f"broker broker-a has store {'cd' * 16}, but store {STORE} was planned"]


def test_planned_messages_that_are_not_there_are_waited_for(broker: Broker) -> None:
    broker.end = 5
    with pytest.raises(ConnectError, match="does not exist"):
        read(broker, timeout_ms=200)


@pytest.mark.parametrize(
    "ext",
    [
        {"entries": 2},
        {"entries": 4},
        {"nextBeginOffset": 0},
        {"nextBeginOffset": 11},
        {"runs": 0},
        {"runs": 4},
        {"runs": 2},
    ],
)
def test_a_response_whose_fields_do_not_fit_is_refused(broker: Broker, ext: dict[str, int]) -> None:
    def raw(request: Request[Any]) -> bytes:
        data = bytearray(HEAD_BYTES) + bytes(3 * 48 + 300)
        fields = {"entries": 3, "runs": 1, "nextBeginOffset": 3} | ext
        return bytes(complete_frame(encode_response_head(request, 0, None, fields, body_bytes(data)), data))

    broker.raw = raw  # type: ignore[method-assign]
    with pytest.raises(ProtocolError):
        read(broker)
