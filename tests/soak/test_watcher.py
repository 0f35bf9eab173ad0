"""What a watcher records: every response that it received, even if the broker dies before the next one."""

import asyncio
from pathlib import Path

import msgspec

from halfmq.bench.load import frame
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.testing.history.events import AnyEvent, QueueRead, Seen
from halfmq.testing.history.reader import FileSource
from tests.soak.notes import Notes
from tests.soak.plan import QUEUES, TOPICS, Plan
from tests.soak.watcher import Watcher

HOST = bytes((127, 0, 0, 1)) + (10_911).to_bytes(4, "big")
NO_NEW_MESSAGE, NO_MATCH = 19, 20


def message(topic: str) -> bytes:
    stored = StoredMessage(
        topic=topic, queue_id=0, queue_offset=0, flag=0, sys_flag=0, born_time_ms=1, born_host=HOST, store_time_ms=2,
        store_host=HOST, reconsume_times=0, prepared_offset=0, body=b"one", body_crc=body_crc_of(b"one"),
        properties=b"UNIQ_KEY\x01M\x02",
    )  # fmt: skip
    return b"".join(encode(stored, 64))


def answer(opaque: int, code: int, body: bytes = b"", **fields: str) -> bytes:
    return frame(msgspec.json.encode({"code": code, "flag": 1, "opaque": opaque, "extFields": fields}), body)


def plan_of(server: asyncio.Server, directory: Path) -> Plan:
    plan = Plan(
        directory=str(directory), seed=1, broker_port=server.sockets[0].getsockname()[1], name_port=0, sqlite_url="",
        postgres_url="", jdbc_url="", rate=1, retention_s=1, patient_s=1,
    )  # fmt: skip
    plan.save()
    return plan


async def test_a_filtering_watcher_continues_after_messages_without_its_tag_and_records_no_queue_ends(
    tmp_path: Path,
) -> None:
    asked: list[tuple[str, str]] = []
    queues = len(TOPICS) * QUEUES

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for code in (NO_MATCH, NO_NEW_MESSAGE, NO_NEW_MESSAGE):
            for number in range(queues):
                request = msgspec.json.decode(
                    (await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))[4:]
                )
                asked.append((request["extFields"]["subscription"], request["extFields"]["queueOffset"]))
                writer.write(answer(number, code, nextBeginOffset="7"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        plan = plan_of(server, tmp_path)
        watcher = Watcher(plan, "filtered", Notes(plan, "filtered.1"), subscription="red || blue")
        watcher.stopping = True
        await asyncio.wait_for(watcher.run(), 10)
    assert asked[:queues] == [("red || blue", "0")] * queues
    assert asked[queues : 2 * queues] == [("red || blue", "7")] * queues
    source = FileSource(plan.histories / "filtered.1.jsonl")
    assert not [event for block in source.blocks() for event in block.events if isinstance(event, QueueRead)]


async def test_a_message_received_before_the_broker_died_is_recorded_and_not_requested_again(tmp_path: Path) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read(1 << 16)
        if connections == 1:
            writer.write(answer(0, 0, message(TOPICS[0])))
        else:
            writer.write(b"".join(answer(number, NO_NEW_MESSAGE) for number in range(len(TOPICS) * QUEUES)))
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        plan = plan_of(server, tmp_path)
        watcher = Watcher(plan, "watcher", Notes(plan, "watcher.1"))
        watcher.stopping = True
        await asyncio.wait_for(watcher.run(), 10)
    source = FileSource(plan.histories / "watcher.1.jsonl")
    events: list[AnyEvent] = [event for block in source.blocks() for event in block.events]
    assert [(event.message, event.queue_offset) for event in events if isinstance(event, Seen)] == [("M", 0)]
    ends = {(event.topic, event.queue): event.end for event in events if isinstance(event, QueueRead)}
    assert ends == {
        (topic, queue): int((topic, queue) == (TOPICS[0], 0)) for topic in TOPICS for queue in range(QUEUES)
    }
    assert connections == 2
