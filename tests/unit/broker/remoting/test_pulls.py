"""Pulls: what comes back at each offset, held pulls and who wakes them, filters, limits."""

import asyncio
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient, command, pull_ext
from tests.support.waiting import soon, until

from halfmq import limits
from halfmq.broker.remoting.pulls import PullHandlers
from halfmq.broker.services.pulls import Pulled, Status
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import SYS_COMMITTED, SYS_TRANSACTION_MASK, StoredMessage, decode
from halfmq.store.layout import QUEUE_ENTRY_BYTES
from halfmq.wire.remoting.header import Request, encode_response
from halfmq.wire.remoting.header import decode as decode_frame

COMMIT = 8
ID = "AC10000100002A9F0000000000000001"


def messages(pulled: Answer) -> list[tuple[StoredMessage, int]]:
    """(message, physical offset) of each in the body."""
    found = []
    at = 0
    while at < len(pulled.body):
        message, offset, size = decode(pulled.body, at)
        found.append((message, offset))
        at += size
    return found


async def sent(client: RawClient, count: int, *, body: bytes = b"x", topic: str = "T", **properties: str) -> None:
    for number in range(count):
        assert (await client.send(topic, body, unique=f"{topic}{number:024d}", **properties)).code == 0


async def test_a_pull_is_answered_by_what_was_found_within_what_it_asks_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 2, TAGS="A")
        assert (await client.send("T", b"wanted", unique="B" * 32, TAGS="B")).code == 0
        for offset, code, following in ((0, 0, 3), (1, 0, 3), (3, 19, 3), (4, 21, 3), (-1, 21, 0)):
            answer = await client.pull("T", offset)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (code, str(following)), offset
            assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "3")
            assert answer.ext["suggestWhichBrokerId"] == "0"
        skipped = await client.pull("T", tags="C")
        assert (skipped.code, skipped.ext["nextBeginOffset"]) == (20, "3")
        found = await client.pull("T", tags="B || C")
        assert ([message.body for message, _ in messages(found)], found.ext["nextBeginOffset"]) == ([b"wanted"], "3")
        assert len(messages(await client.pull("T", count=2))) == 2
        assert len(messages(await client.ask(11, {**pull_ext("T", "C", 0, 0), "maxMsgBytes": "100"}))) == 1
        assert (await client.ask(361, pull_ext("T", "C", 0, 0))).body == (await client.pull("T")).body, "a lite pull"


async def test_committed_half_leaves_as_the_message_that_consumers_know(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 2)
        half = await client.half("T", b"one", unique=ID, TAGS="A")
        assert (await client.end(half, ID, COMMIT)).code == 0
        ((message, offset),) = messages(await client.pull("T", 2))
        assert message.sys_flag & SYS_TRANSACTION_MASK == SYS_COMMITTED
        assert (message.queue_offset, message.topic, message.body) == (2, "T", b"one")
        assert message.prepared_offset == offset == int(half.ext["msgId"][-16:], 16)
        assert b"REAL_TOPIC\x01T" in message.properties
        assert b"TRAN_MSG\x01true" in message.properties


async def test_prepared_offset_is_the_first_one_also_when_the_half_was_carried_forward(tmp_path: Path) -> None:
    """Goal: what consumers see of a half's identity does not depend on trims. Method: halves that are carried by a trim,
    by their commit, by a trim after it while they are delayed; looked at by pull, by offset and by key."""
    async with serving(
        tmp_path,
        segment_bytes=1 << 16,
        retention_bytes=1 << 17,
        retention_check_ms=30,
        checkpoint_interval_ms=60,
        settings=BrokerSettings(dedup_window_ms=0),
    ) as running:
        client = await running.client()
        halves = {}
        for name, more in (("A", {}), ("B", {"TIMER_DELAY_MS": "1500"})):
            half = await client.half("T", name.encode(), unique=name * 32, KEYS=f"key{name}", **more)
            halves[name] = half, int(half.ext["msgId"][-16:], 16)
        assert (await client.end(halves["B"][0], "B" * 32, COMMIT)).code == 0
        for number in range(40):
            await client.send("Fill", bytes(8_000), unique=f"FILL{number:028d}")
        await until(lambda: running.state.log_start > halves["B"][1])
        assert (await client.end(halves["A"][0], "A" * 32, COMMIT)).code == 0
        await until(lambda: running.state.topics_by_name["T"].ends[0] == 2)
        seen = messages(await client.pull("T"))
        assert sorted(message.body for message, _ in seen) == [b"A", b"B"]
        for message, offset in seen:
            name = message.body.decode()
            first = halves[name][1]
            assert (message.prepared_offset, offset > first) == (first, True), name
            (viewed, _), *_ = messages(await client.ask(33, {"offset": str(offset)}))
            assert viewed == message
            query = {
                "topic": "T",
                "key": f"key{name}",
                "maxNum": "8",
                "beginTimestamp": "0",
                "endTimestamp": str(1 << 62),
            }
            ((found, _),) = messages(await client.ask(12, query))
            assert found == message


async def test_parked_pull_wakes_when_a_message_is_committed(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client, consumer = await running.client(), await running.client()
        await sent(client, 1)
        parked = asyncio.create_task(consumer.pull("T", 1, wait_ms=20_000))
        await until(lambda: running.broker._pulls.held == 1)
        half = await client.half("T", b"one", unique=ID)
        assert (await consumer.pull("T")).code == 0, "what is answered on its connection now comes after the half"
        assert not parked.done()
        await client.end(half, ID, COMMIT)
        assert (await consumer.pull("T")).code == 0
        assert parked.done(), "not only when its time is up"
        assert [message.body for message, _ in messages(await parked)] == [b"one"]
        assert running.broker._pulls.held == 0


async def test_a_parked_pull_keeps_what_its_answer_needs_and_nothing_else(tmp_path: Path) -> None:
    """Goal: megabytes in the header, the body or unknown fields of pulls that wait are not kept."""
    async with serving(tmp_path) as running:
        client = await running.client()
        pulls = running.broker._pulls
        await sent(client, 1)
        tracemalloc.start()
        try:
            for number in range(20):
                fields = pull_ext("T", "TOOLS_CONSUMER", 0, 1, wait_ms=20_000) | {"unknown": "u" * 300_000}
                client.write(command(11, 900 + number, fields, b"b" * 300_000))
            await until(lambda: pulls.held == 20)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 2_000_000
        await client.send("T", b"x", unique="2" * 32)
        assert (await client.expect(919)).code == 0


async def test_pulls_get_less_while_answers_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 4, body=bytes(20_000))
        monkeypatch.setattr(running.broker._peers.outgoing, "bytes", limits.OUTGOING_BYTES_MAX // 2 + 1)
        assert len(messages(await client.pull("T"))) == 3
        monkeypatch.setattr(running.broker._peers.outgoing, "bytes", limits.OUTGOING_BYTES_MAX + 1)
        answer = await client.pull("T", wait_ms=20_000)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "0"), "it comes again at once"


async def test_pull_is_refused_with_the_codes_of_rocketmq(tmp_path: Path) -> None:
    """Each code and its reason: ``test_refusals``; which comes first: ``services/test_pulls``."""
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 1)
        assert (await client.pull("Nowhere")).code == 17
        assert (await client.pull("T", queue=5)).code == 29
        assert (await client.ask(11, {**pull_ext("T", "C", 0, 0), "expressionType": "SQL92"})).code == 1
        by_heartbeat = {**pull_ext("T", "C", 0, 0), "sysFlag": "0"}
        assert (await client.ask(11, by_heartbeat)).code == 24
        await client.heartbeat("me", consumers={"C": ["T"]})
        assert (await client.ask(11, {**by_heartbeat, "subVersion": "2"})).code == 25
        assert (await client.ask(11, {**by_heartbeat, "subVersion": "1"})).code == 0


async def test_ipv6_producer_is_pulled_whole(tmp_path: Path) -> None:
    async with serving(tmp_path, hosts=("::1",)) as running:
        reader, writer = await asyncio.open_connection("::1", running.ports.broker)
        client = RawClient(reader, writer, 409)
        half = await client.half("T", b"six", unique=ID)
        assert len(half.ext["msgId"]) == 56
        assert (await client.end(half, ID, COMMIT)).code == 0
        (message, _), *_ = messages(await client.pull("T"))
        assert (message.body, len(message.born_host), len(message.store_host)) == (b"six", 20, 20)
        assert message.sys_flag & SYS_TRANSACTION_MASK == SYS_COMMITTED
        await client.close()


# --- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "field_at", "new"),
    [(2, 0, b"\x7f" + bytes(7)), (4, 16, b"\x7f")],
    ids=["its offset is after the log", "its position is after what is visible"],
)
async def test_damaged_entry_is_said_by_name_and_never_skipped(
    tmp_path: Path, at: int, field_at: int, new: bytes
) -> None:
    """A read ends before what is not visible yet: one that ends there at once, inside the queue, is damage."""
    async with serving(tmp_path) as running:
        await sent(await running.client(), 5, body=b"body", TAGS="A")
        await running.broker.drain()
    (path,) = (tmp_path / "shard-0" / "queues").glob("*/0/*.q")
    async with serving(tmp_path) as running:
        with path.open("r+b") as file:  # only now: a start may see it and make the file again
            file.seek(at * QUEUE_ENTRY_BYTES + field_at)
            file.write(new)
        client = await running.client()
        damaged = await client.pull("T", at, wait_ms=3_000)
        assert (damaged.code, damaged.ext["nextBeginOffset"]) == (1, str(at))
        assert f"topic T queue 0: the message at offset {at} cannot be read" in damaged.remark
        assert "store verify" in damaged.remark


# --- who does not read --------------------------------------------------------------------------------------------


async def test_parked_pulls_of_who_does_not_read_are_answered_when_it_reads_again(tmp_path: Path) -> None:
    """Goal: one message does not become an answer for each of many held pulls that nobody takes."""
    async with serving(tmp_path, segment_bytes=16 << 20) as running:
        client = await running.client()
        await sent(client, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker, limit=1024)
        ask = pull_ext("T", "TOOLS_CONSUMER", 0, 1, wait_ms=20_000)
        writer.write(b"".join(command(11, number, ask) for number in range(40)))
        pulls = running.broker._pulls
        await until(lambda: pulls.held == 40)
        connection = max(running.broker._peers.connected.values(), key=lambda one: one.number)
        assert (await client.send("T", bytes(1 << 20), unique="9" * 32)).code == 0
        assert pulls.held > 20
        assert connection.transport.get_write_buffer_size() < 4 << 20
        for _ in range(40):
            answer = await soon(reader.readexactly(int.from_bytes(await soon(reader.readexactly(4)), "big")))
            assert len(answer) > 1 << 20
        assert pulls.held == 0
        writer.transport.abort()


@pytest.mark.parametrize("binary", [False, True])
def test_a_text_of_any_characters_is_an_answer_that_can_be_read(binary: bool) -> None:
    """What cannot be read is named by its file, and a file may have any name."""
    text = 'the message at offset 2 cannot be read: /data/a "quoted" \\ path\n'
    sent: list[bytes] = []
    gateway: Any = SimpleNamespace(
        answer=lambda connection, request, *rest: sent.append(encode_response(request, *rest)),
    )
    parts: Any = SimpleNamespace(gateway=gateway, sequencer=SimpleNamespace(view=None), turns=None, pulls=None)
    request: Request[Any] = Request(code=11, ext=None, opaque=7, binary=binary)
    pulled = Pulled(Status.UNREADABLE, 2, 0, 9, bytearray(), text)
    PullHandlers(parts)._pulled(SimpleNamespace(send=sent.append), request, pulled)  # type: ignore[arg-type]
    (frame,) = sent
    answer = decode_frame(frame[4:])
    assert (answer.code, answer.remark) == (1, text)
    assert answer.ext == {"suggestWhichBrokerId": "0", "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "9"}
