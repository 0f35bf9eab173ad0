"""Raw reads from a running broker: what is visible, and nothing else; refusals; a body in one piece."""

import asyncio
import struct
import zlib
from itertools import accumulate
from pathlib import Path

from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import Hand, Running, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import turns, until

from halfmq.model.stored_message import decode
from halfmq.store.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from halfmq.store.store import Durability
from halfmq.wire.remoting.raw_read import BETWEEN_BYTES, CHECKSUM_BYTES, is_intact

RAW, POSITION = 29_015, 29_001
COMMIT = 8
ID = "AC10000100002A9F0000000000000001"


async def topic_of(running: Running, client: RawClient, topic: str = "T") -> tuple[str, int]:
    """(store, topic id)."""
    answer = await client.ask(POSITION, {"topics": topic})
    return answer.ext["store"], running.broker._sequencer.view.topics_by_name[topic].topic_id  # type: ignore[union-attr]


async def read(client: RawClient, store: str, topic_id: int, first: int = 0, **changes: str) -> Answer:
    ext = {
        "consumerGroup": "C", "store": store, "topic": "T", "topicId": str(topic_id), "queueId": "0",
        "firstOffset": str(first), "endOffset": "1000", "maxBytes": "100000", **changes,
    }  # fmt: skip
    return await client.ask(RAW, ext)


def bodies(answer: Answer) -> list[bytes]:
    assert answer.code == 0, answer
    assert is_intact(memoryview(answer.body))
    number = int(answer.ext["entries"])
    entries = answer.body[CHECKSUM_BYTES:][: number * QUEUE_ENTRY_BYTES]
    at = CHECKSUM_BYTES + len(entries)
    runs = struct.unpack_from(f">{answer.ext['runs']}I", answer.body, at)
    at += 4 * len(runs)
    first = set(accumulate(runs, initial=0))
    found = []
    for place, (_, size, *_) in enumerate(QUEUE_ENTRY.iter_unpack(entries)):
        at += 0 if place in first else BETWEEN_BYTES
        message, _, decoded = decode(answer.body, at)
        assert decoded == size
        found.append(message.body)
        at += size
    assert at == len(answer.body)
    return found


async def test_committed_messages_and_nothing_of_a_half_that_lies_between_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"one")
        half = await client.half("T", b"secret", unique=ID)
        await client.send("T", b"two")
        store, topic = await topic_of(running, client)
        answer = await read(client, store, topic)
        assert bodies(answer) == [b"one", b"two"]
        assert b"secret" not in answer.body
        assert answer.ext["nextBeginOffset"] == "2"
        await client.end(half, ID, COMMIT)
        assert bodies(await read(client, store, topic)) == [b"one", b"two", b"secret"]
        assert bodies(await read(client, store, topic, 1, endOffset="2")) == [b"two"]
        assert bodies(await read(client, store, topic, 1, maxBytes="1")) == [b"two"]


async def test_the_bytes_of_a_response_with_a_whole_half_batch(tmp_path: Path) -> None:
    """By the numbers of ``wire.remoting.raw_read``, without its code: a reader of another version must understand them."""
    async with serving(tmp_path) as running:
        client = await running.client()
        run = await QueryRun.begin(client)
        await run.prepare(0, "0.1", messages("a", 50))
        await run.decide(0, "0.1")
        await client.send("T", b"plain")
        answer = await read(client, *await topic_of(running, client), storedChecksums="1")
        log = min((tmp_path / "shard-0" / "log").iterdir())
        stored_in_log = log.read_bytes()
    body = answer.body
    assert [answer.ext[name] for name in ("entries", "runs", "halfBatches")] == ["51", "2", "1"]
    sizes = [struct.unpack_from(">I", body, 4 + 48 * number + 8)[0] for number in range(51)]
    *runs, stored, beside = struct.unpack_from(">4I", body, 4 + 48 * 51)
    assert runs == [0x8000_0000 + 50, 1]
    messages_at = 4 + 48 * 51 + 16
    assert struct.unpack_from(">I", body)[0] == zlib.crc32(body[4:messages_at])
    assert stored.to_bytes(4, "big") in stored_in_log
    plain_at = messages_at + sum(sizes[:50]) + 49 * 16
    assert beside == zlib.crc32(body[plain_at:])
    assert len(body) == plain_at + sizes[50]


async def sent_by_hand(hand: Hand, client: RawClient) -> None:
    """Send ``one`` to T, and sync until it is confirmed."""
    first = asyncio.ensure_future(client.send("T", b"one"))
    await until(lambda: not hand.flush.run() and first.done())


async def test_what_is_not_durable_is_not_returned(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        client = await running.client()
        await sent_by_hand(hand, client)
        store, topic = await topic_of(running, client)
        task = asyncio.ensure_future(client.send("T", b"not durable"))
        await until(lambda: running.state.topics_by_name["T"].ends[0] == 2)
        assert bodies(await read(client, store, topic)) == [b"one"]
        assert not task.done()
        hand.flush.run()
        await task
        assert bodies(await read(client, store, topic)) == [b"one", b"not durable"]


async def test_a_request_continues_where_the_one_before_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client, other = await running.client(), await running.client()
        for number in range(6):
            await client.send("T", b"%d" % number)
            await client.send("U", b"other")
        store, topic = await topic_of(running, client)
        on = {"continues": "1", "firstOffset": "4711"}
        nothing = await read(client, store, topic, **on)
        assert (nothing.code, nothing.remark) == (2, "nothing was read that this continues")
        found = await read(client, store, topic, endOffset="2")
        assert (bodies(found), found.ext["continues"]) == ([b"0", b"1"], "1")
        assert (await read(other, store, topic, **on)).code == 2, "of its own connection"
        for end, expected in (("3", [b"2"]), ("5", [b"3", b"4"])):
            assert bodies(await read(client, store, topic, **on, endOffset=end)) == expected
        for end in ("5", "4"):
            over = await read(client, store, topic, **on, endOffset=end)
            assert (over.code, over.remark, over.ext["nextBeginOffset"]) == (19, "the range is read", end)
        _, other_topic = await topic_of(running, client, "U")
        for topic_id, wrong in ((other_topic, {"topic": "U"}), (topic, {"queueId": "1"}), (topic, {"maxBytes": "x"})):
            assert bodies(await read(client, store, topic, 3, endOffset="5")) == [b"3", b"4"]
            assert (await read(client, store, topic_id, **on | wrong)).code in (2, 29)
            assert (await read(client, store, topic, **on)).code == 2, "nor does what follows a refusal continue"
        assert bodies(await read(client, store, topic, 3, endOffset="5")) == [b"3", b"4"]
        assert bodies(await read(client, store, topic, **on)) == [b"5"]
        assert (await read(client, store, topic, **on)).code == 19, "the queue ends"
        assert (await read(client, store, topic, **on)).code == 2, "what had no messages has no end"


async def test_a_request_that_continues_a_withheld_refusal_is_not_answered_before_it(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        client = await running.client()
        await sent_by_hand(hand, client)
        store, topic = await topic_of(running, client)
        pending = asyncio.ensure_future(client.send("T", b"not durable"))
        await until(lambda: running.state.topics_by_name["T"].ends[0] == 2)
        answered: list[int] = []
        for given in ({}, {"continues": "1"}, {"continues": "1"}):
            asked = asyncio.ensure_future(read(client, store, topic + 7, **given))
            asked.add_done_callback(lambda one: answered.append(one.result().code))
        await turns(1)  # they are sent
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).code == 0, "it comes after them"
        await turns()
        assert answered == []
        hand.flush.run()
        await pending
        await until(lambda: len(answered) == 3)
        assert answered == [17, 2, 2]


async def test_each_reason_to_read_nothing_has_its_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for number in range(6):
            await client.send("T", b"%d" % number)
        store, topic = await topic_of(running, client)
        other = await read(client, "ab" * 16, topic)
        assert (other.code, other.ext["store"]) == (22, store)
        assert (await read(client, store, topic, queueId="7")).code == 29
        end = await read(client, store, topic, 6)
        assert (end.code, end.ext["nextBeginOffset"]) == (19, "6")
        running.broker._store.queues._queues[topic, 0].min = 3  # type: ignore[union-attr]
        moved = await read(client, store, topic)
        assert (moved.code, moved.ext["nextBeginOffset"], moved.ext["minOffset"]) == (21, "3", "3")
        damage(tmp_path / "shard-0" / "queues" / str(topic) / "0", 4)
        assert bodies(await read(client, store, topic, 3)) == [b"3"]
        damaged = await read(client, store, topic, 4)
        assert (damaged.code, damaged.ext["nextBeginOffset"]) == (1, "4")
        assert "topic T queue 0: the message at offset 4 cannot be read" in (damaged.remark or "")
        assert bodies(await read(client, store, topic, 5)) == [b"5"]
        await client.ask(215, {"topic": "T"})
        gone = await read(client, store, topic)
        assert (gone.code, gone.remark) == (17, "topic T no longer exists")
        await client.send("T", b"another")
        again = await read(client, store, topic)
        assert (again.code, again.remark) == (17, "topic T was deleted and created again")


def damage(queue: Path, offset: int) -> None:
    """The entry at this offset of the queue says another size."""
    with next(queue.glob("*.q")).open("r+b") as file:
        file.seek(offset * QUEUE_ENTRY_BYTES)
        entry = list(QUEUE_ENTRY.unpack(file.read(QUEUE_ENTRY_BYTES)))
        entry[1] -= 1
        file.seek(offset * QUEUE_ENTRY_BYTES)
        file.write(QUEUE_ENTRY.pack(*entry))
