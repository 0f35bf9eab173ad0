"""Sends, batches and messages that are sent back: what is stored, and what the answer says."""

import asyncio
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.raw_client import Answer, RawClient, command, send_ext
from tests.support.waiting import soon

from halfmq import limits
from halfmq.model import properties as props
from halfmq.model.stored_message import StoredMessage, decode
from halfmq.wire.remoting.codes import EXT_SENT_AGAIN
from halfmq.wire.remoting.message_codec import BatchEntry, join_batch

ID = "AC10000100002A9F0000000000000001"


def first(pulled: Answer) -> StoredMessage:
    assert pulled.code == 0, pulled
    return decode(pulled.body)[0]


def place(answer: Answer) -> int:
    return int(answer.ext["msgId"][-16:], 16)


async def test_answer_to_a_send_has_what_clients_need(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        answer = await (await running.client()).send("T", b"x", unique=ID)
        assert answer.code == 0
        assert answer.ext.keys() >= {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON", "transactionId"}
        port = int(answer.ext["msgId"][8:16], 16)
        assert (answer.ext["msgId"][:8], port, len(answer.ext["msgId"])) == ("7F000001", running.ports.broker, 32)
        assert answer.ext["transactionId"] == ID


async def test_v1_send_with_long_names_is_the_same_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        ext = {
            "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "2",
            "sysFlag": "0", "bornTimestamp": "17", "flag": "5", "properties": "K\x01v\x02", "reconsumeTimes": "0",
            "unitMode": "false", "maxReconsumeTimes": "0",
        }  # fmt: skip
        answer = await client.ask(10, ext, b"go")
        assert (answer.code, answer.ext["queueId"]) == (0, "2")
        message = first(await client.pull("T", queue=2))
        assert (message.body, message.flag, message.born_time_ms) == (b"go", 5, 17)
        assert props.to_dict(message.properties)["CLUSTER"] == "DefaultCluster"


async def test_batch_is_stored_message_by_message_in_one_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        body = b""
        for number in range(3):
            text = f"UNIQ_KEY\x01{number:032d}\x02".encode()
            body += (22 + 6 + len(text)).to_bytes(4, "big") + bytes(12) + (6).to_bytes(4, "big")
            body += b"batch%d" % number + len(text).to_bytes(2, "big") + text
        answer = await client.ask(320, send_ext("T", "P", 0, {}), body)
        assert answer.code == 0
        assert len(answer.ext["msgId"].split(",")) == 3
        pulled = await client.pull("T")
        assert pulled.ext["nextBeginOffset"] == "3"
        assert b"batch0" in pulled.body
        assert b"batch2" in pulled.body


async def test_plain_message_and_batch_marked_as_sent_again_are_one_on_any_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        ext = send_ext("T", "P", 0, {"UNIQ_KEY": ID})
        again = {**ext, EXT_SENT_AGAIN: "true"}
        one = await client.ask(310, ext, b"x")
        assert (await client.ask(310, again, b"x")).ext["msgId"] == one.ext["msgId"]
        batch = join_batch(BatchEntry(0, b"b", b"UNIQ_KEY\x01B%d\x02" % number) for number in range(3))
        plain = send_ext("T", "P", 0, {})
        three = await client.ask(320, plain, batch)
        assert (await client.ask(320, {**plain, EXT_SENT_AGAIN: "true"}, batch)).ext["msgId"] == three.ext["msgId"]
        assert (await client.ask(30, {"topic": "T", "queueId": "0"})).ext == {"offset": "4"}
        assert (await client.ask(310, ext, b"x")).ext["msgId"] != one.ext["msgId"], "without the mark it is another one"


async def back(client: RawClient, offset: int, level: int = 1, **more: str) -> Answer:
    return await client.ask(36, {"offset": str(offset), "group": "C", "delayLevel": str(level), **more})


async def test_message_sent_back_returns_on_the_retry_topic_and_ends_as_a_dead_letter(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.heartbeat("me", consumers={"C": ["T"]})
        sent = await client.send("T", b"hard", unique=ID, TAGS="A")
        assert (await back(client, place(sent))).code == 0
        assert (await client.pull("%RETRY%C")).code == 19
        pulled = await client.pull("%RETRY%C", wait_ms=60_000)
        retried = first(pulled)
        found = props.to_dict(retried.properties)
        assert (retried.body, retried.reconsume_times) == (b"hard", 1)
        assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"], found["UNIQ_KEY"]) == ("T", sent.ext["msgId"], ID)
        again = decode(pulled.body)[1]
        assert (await back(client, again, 0, maxReconsumeTimes="1")).code == 0
        dead = first(await client.pull("%DLQ%C", wait_ms=60_000))
        assert (dead.body, dead.reconsume_times) == (b"hard", 2)
        assert (await back(client, place(sent), -1)).code == 0
        assert (await client.pull("%DLQ%C", 1)).code == 0


async def test_committed_half_can_be_sent_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.heartbeat("me", consumers={"C": ["T"]})
        half = await client.half("T", b"one", unique=ID)
        await client.end(half, ID, 8)
        assert (await back(client, place(half), -1)).code == 0
        dead = first(await client.pull("%DLQ%C"))
        assert dead.body == b"one"


async def test_max_reconsume_times_of_an_old_client_is_not_listened_to(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client(version=100)
        await client.heartbeat("me", consumers={"C": ["T"]})
        sent = await client.send("T", b"x", unique=ID)
        assert (await back(client, place(sent), 1, maxReconsumeTimes="0")).code == 0
        assert (await client.pull("%DLQ%C")).code == 17


async def test_answer_comes_in_the_serialisation_of_the_request(tmp_path: Path) -> None:
    """A route asked for with a binary header: the answer's serialisation byte is 1."""
    async with serving(tmp_path) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports.broker)
        ext = b"\0\5topic\0\0\0\6TBW102"
        header = b"\0\x69\0\1\x99" + (7).to_bytes(4, "big") + bytes(8) + len(ext).to_bytes(4, "big") + ext
        writer.write((4 + len(header)).to_bytes(4, "big") + (1 << 24 | len(header)).to_bytes(4, "big") + header)
        total = int.from_bytes(await reader.readexactly(4), "big")
        answer = await reader.readexactly(total)
        assert answer[0] == 1
        assert int.from_bytes(answer[4:6], "big") == 0
        assert answer[9:13] == (7).to_bytes(4, "big")
        writer.close()


@pytest.mark.parametrize("turn_s", [limits.INTAKE_TURN_S, 1e-9], ids=["at once", "in turns"])
async def test_what_follows_a_batch_on_its_connection_is_stored_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn_s: float
) -> None:
    """Also if the batch takes several turns of the loop, and all came in one read."""
    monkeypatch.setattr(limits, "INTAKE_TURN_S", turn_s)
    async with serving(tmp_path) as running:
        client, other = await running.client(), await running.client()
        large = join_batch(
            [BatchEntry(0, b"%d" % number, b"A\x01%b\x02" % bytes(30_000).replace(b"\0", b"a")) for number in range(10)]
        )
        frames, waiting = [], []
        for code, body in ((320, large), (310, b"x"), (320, large), (310, b"y"), (105, b"")):
            opaque = client.next_opaque()
            waiting.append(client.expect(opaque))
            ext = {"topic": "T"} if code == 105 else send_ext("T", "P", 0, {})
            frames.append(command(code, opaque, ext, body))
        client.write(b"".join(frames))
        assert (await other.send("Other", b"x")).code == 0
        answers = [await soon(one) for one in waiting]
        assert [answer.code for answer in answers] == [0] * 5
        assert [int(answer.ext["queueOffset"]) for answer in answers[:4]] == [0, 10, 11, 21]
