"""Offsets by queue, by time and by group; messages by offset and by key; every queue at one position."""

import asyncio
import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.in_process import ShiftedClock, serving
from tests.support.raw_client import RawClient, pull_ext

from halfmq.core.commands import CommitOffset
from halfmq.core.decide import DECIDE
from halfmq.core.decision import Decision, Refused, Why
from halfmq.errors import StoreDamaged
from halfmq.model.stored_message import decode
from halfmq.store.store import Store
from halfmq.wire.remoting.codes import EXT_DAMAGED, HMQ_FITTING, HMQ_POSITION
from halfmq.wire.remoting.position import decode_answer, encode_samples, request_ext

ID = "AC10000100002A9F0000000000000001"
QUEUE = {"topic": "T", "queueId": "0"}


async def sent(client: RawClient, count: int, **properties: str) -> list[int]:
    """Log offsets of ``count`` messages in queue 0 of T."""
    answers = [await client.send("T", b"x", unique=f"{number:032d}", **properties) for number in range(count)]
    return [int(answer.ext["msgId"][-16:], 16) for answer in answers]


async def offset(client: RawClient, group: str = "C", **more: str) -> int | None:
    answer = await client.ask(14, {"consumerGroup": group, **QUEUE, **more})
    assert answer.code in (0, 22)
    return int(answer.ext["offset"]) if answer.code == 0 else None


async def test_consumer_offset_is_what_was_said_last_and_survives_a_drain(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 5)
        await client.heartbeat("me", consumers={"C": ["T"]})
        client.tell(15, {"consumerGroup": "C", **QUEUE, "commitOffset": "3"})
        assert await offset(client) == 3
        assert (await client.ask(15, {"consumerGroup": "C", **QUEUE, "commitOffset": "2"})).code == 0
        assert await offset(client) == 2
        await running.broker.drain()
    async with serving(tmp_path) as running:
        assert await offset(await running.client()) == 2


async def test_an_offset_that_is_not_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who resets or clones offsets waits for the answer, and believes it."""
    codes = {
        Why.STORE_FULL: 14, Why.LIMIT_REACHED: 2, Why.TOPIC_NOT_EXIST: 17, Why.GROUP_NOT_EXIST: 26, Why.INVALID_PARAMETER: 29,
    }  # fmt: skip
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 1)
        for group, topic, queue, code in (("C", "T", 0, 26), ("C", "Nowhere", 0, 17), ("C", "T", 99, 26)):
            where = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": "1"}
            assert (await client.ask(15, where)).code == code
        for why, code in codes.items():
            refused = Decision((), Refused(why, "planted"))
            monkeypatch.setitem(DECIDE, CommitOffset, lambda *arguments, refused=refused: refused)
            answer = await client.ask(15, {"consumerGroup": "C", **QUEUE, "commitOffset": "1"})
            assert (answer.code, answer.remark) == (code, "planted"), why
        monkeypatch.setitem(DECIDE, CommitOffset, Mock(side_effect=ZeroDivisionError("a bug")))
        answer = await client.ask(15, {"consumerGroup": "C", **QUEUE, "commitOffset": "1"})
        assert (answer.code, "ZeroDivisionError" in str(answer.remark)) == (1, True)


async def test_no_offset_is_22_and_a_young_queue_begins_at_0(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert await offset(client) is None
        await sent(client, 1)
        assert await offset(client) == 0
        assert await offset(client, setZeroIfNotFound="false") is None


async def test_an_offset_without_room_is_refused_and_no_message_is_jumped_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a store that is full of topics loses nothing of a group whose offsets find no room. Method: commits as clients
    send them, refused; then the broker starts anew, and the group asks where to begin."""
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        await client.ask(17, {"topic": "T", "readQueueNums": "100", "writeQueueNums": "100", "perm": "6"})
        await client.heartbeat("me", consumers={"C": ["T"]})
        for queues in (500, 100, 10, 1):
            for number in range(20):
                name = f"fill-{queues}-{number}"
                ext = {"topic": name, "readQueueNums": f"{queues}", "writeQueueNums": f"{queues}", "perm": "6"}
                await client.ask(17, ext)
        await sent(client, 5)
        where = {"consumerGroup": "C", "topic": "T", "commitOffset": "3"}
        answers = [await client.ask(15, {**where, "queueId": str(queue)}) for queue in (*range(1, 50), 0)]
        assert answers[0].code == 0
        assert answers[-1].code == 2
        assert "delete unused topics" in str(answers[-1].remark)
        assert await offset(client) == 3, "it is known as long as this broker runs"
        pull = pull_ext("T", "C", 0, 2)
        assert (await client.ask(11, {**pull, "sysFlag": "5", "commitOffset": "4"})).code == 0
        assert await offset(client) == 4, "also one that a pull says"
        assert sum("was not stored" in line for line in caplog.messages) == 1, "it does not flood the output"
        await running.broker.drain()
    async with serving(tmp_path, segment_bytes=1 << 16) as running:
        client = await running.client()
        assert await offset(client, setZeroIfNotFound="false") == 0, "and not 22: who begins at the end loses messages"
        assert await offset(client, queueId="1") == 3
        await client.ask(215, {"topic": "fill-500-0"})
        assert (await client.ask(15, {**where, "queueId": "0"})).code == 0
        assert await offset(client) == 3


async def test_ends_of_a_queue_and_of_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()

        async def told(code: int, topic: str = "T") -> tuple[int, dict[str, str]]:
            answer = await client.ask(code, {"topic": topic, "queueId": "0"})
            return answer.code, answer.ext

        for code in (30, 31):
            assert await told(code, "Nowhere") == (0, {"offset": "0"})
        assert await told(32) == (0, {"timestamp": "-1"})
        await sent(client, 4)
        assert await told(30) == (0, {"offset": "4"})
        assert await told(31) == (0, {"offset": "0"})
        (first, *_) = decode((await client.pull("T")).body)
        assert await told(32) == (0, {"timestamp": str(first.store_time_ms)})


async def test_offset_by_time(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        client = await running.client()
        await sent(client, 2)
        clock.passed_ms += 1_000
        await client.send("T", b"later", unique="F" * 32)
        (later, *_) = decode((await client.pull("T", 2)).body)
        search = {**QUEUE, "timestamp": str(later.store_time_ms - 1)}
        assert (await client.ask(29, search)).ext == {"offset": "2"}
        assert (await client.ask(29, {**search, "boundaryType": "upper"})).ext == {"offset": "1"}


async def test_message_is_found_by_offset_key_and_unique_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        places = await sent(client, 3, KEYS="order-7 order-8")
        seen = await client.ask(33, {"offset": str(places[1])})
        assert decode(seen.body)[1] == places[1]
        by_key = await client.ask(
            12, {"topic": "T", "key": "order-8", "maxNum": "2", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        )
        assert by_key.code == 0
        assert len(by_key.body) == 2 * len(seen.body)
        assert set(by_key.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
        unique = {
            "topic": "T", "key": f"{1:032d}", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(1 << 60),
            "_UNIQUE_KEY_QUERY": "true",
        }  # fmt: skip
        assert (await client.ask(12, unique)).body == seen.body
        assert (await client.ask(12, {**unique, "endTimestamp": "5"})).code == 22
        assert (await client.ask(12, {**unique, "key": "none"})).code == 22
        assert (await client.ask(12, {**unique, "topic": "Nowhere"})).code == 22


async def test_undecided_and_rolled_back_halves_are_not_found_and_committed_ones_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=ID, KEYS="order-9")
        at = {"offset": str(int(half.ext["msgId"][-16:], 16))}
        key = {"topic": "T", "key": "order-9", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        other = await client.half("T", b"two", unique="B" * 32, KEYS="order-9")
        await client.end(other, "B" * 32, 12)
        assert (await client.ask(33, at)).code == 1
        assert (await client.ask(33, {"offset": str(int(other.ext["msgId"][-16:], 16))})).code == 1
        assert (await client.ask(12, key)).code == 22
        await client.end(half, ID, 8)
        assert (await client.ask(12, key)).body == (await client.ask(33, at)).body == (await client.pull("T")).body


async def test_how_many_messages_fit_into_a_number_of_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 3)
        asked = {"topic": "T", "queueId": "0", "offset": "0", "end": "3"}
        whole = await client.ask(HMQ_FITTING, {**asked, "bytes": "1000000"})
        assert (whole.code, whole.ext["count"]) == (0, "3")
        fewer = await client.ask(HMQ_FITTING, {**asked, "bytes": str(int(whole.ext["bytes"]) - 1)})
        assert (fewer.code, fewer.ext["count"]) == (0, "2")
        nowhere = await client.ask(HMQ_FITTING, {**asked, "topic": "Nowhere", "bytes": "1000000"})
        assert (nowhere.code, nowhere.ext) == (0, {"count": "0", "bytes": "0"})


async def test_an_offset_that_is_looked_for_behind_a_turn_and_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset that came in the same read is noted first; what went wrong behind that turn was answered to nobody."""
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 1)

        def unreadable(*_: object) -> None:
            raise StoreDamaged("the queue cannot be read")

        monkeypatch.setattr(running.broker._store, "read_queue", unreadable)
        committed = client.ask(15, {"consumerGroup": "other", **QUEUE, "commitOffset": "0"})
        asked = client.ask(14, {"consumerGroup": "C", **QUEUE})
        _, answer = await asyncio.gather(committed, asked)
        assert (answer.code, answer.remark) == (1, "the queue cannot be read")


async def test_position_tells_every_queue_at_one_position_and_sizes_of_messages_on_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        offsets = await sent(client, 20)
        samples = encode_samples({"T": [(0, 0), (0, 18), (0, 20), (3, 0)], "Nowhere": [(0, 0)]})
        answer = await client.ask(HMQ_POSITION, request_ext(["T", "Nowhere"]), samples)
        assert (answer.code, int(answer.ext["position"])) == (0, running.state.session.published)
        assert len(answer.ext["store"]) == 32
        bounds = decode_answer(answer.ext, answer.body).topics
        size = len((await client.ask(33, {"offset": offsets[0]})).body)
        assert bounds["T"].sizes == ((16, 16 * size), (2, 2 * size), (0, 0), (0, 0))
        assert bounds["T"].queues == ((0, 20),)
        assert bounds.keys() == {"T"}


async def test_damage_is_marked_in_the_refusal_and_what_may_pass_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader that waits for a busy broker does not wait for a damaged one."""
    errors = (
        (StoreDamaged("queue.q is truncated"), True),
        (FileNotFoundError(errno.ENOENT, "gone", "queue.q"), True),
        (OSError(errno.EIO, "Input/output error", "queue.q"), True),
        (OSError(errno.EMFILE, "Too many open files", "queue.q"), False),
        (ZeroDivisionError("queue.q"), False),
    )
    async with serving(tmp_path) as running:
        client = await running.client()
        await sent(client, 1)
        for error, damaged in errors:
            with monkeypatch.context() as patch:
                patch.setattr(Store, "bounds_at", Mock(side_effect=error))
                answer = await client.ask(HMQ_POSITION, request_ext(["T"]))
            assert (answer.code, "queue.q" in str(answer.remark)) == (1, True)
            assert answer.ext == ({EXT_DAMAGED: "true"} if damaged else {}), error
