"""One queue: where reading starts, what is filtered, what is committed, what happens to messages handed back."""

import asyncio
import zlib
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time, run

from halfmq.client import queue_puller
from halfmq.client.queue_puller import Feed, delay_level
from halfmq.model import properties
from halfmq.wire.remoting.codes import PullFlag, RequestCode
from halfmq.wire.remoting.compression import ZLIB
from halfmq.wire.remoting.header import encode_response
from halfmq.wire.remoting.message_codec import PulledMessage, unpack

PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def one_queue(*bodies: bytes, **options: Any) -> ScriptedBroker:
    broker = ScriptedBroker(queues=1, **options)
    broker.topics.add("t")
    for body in bodies:
        broker.append("t", 0, body, properties.encode({"UNIQ_KEY": body.decode(), "TAGS": body.decode()}))
    return broker


def retried(topic: str) -> bytes:
    return properties.encode({"RETRY_TOPIC": topic, "UNIQ_KEY": "U"})


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [b"0", b"1", b"2"]), ("latest", []), (datetime(2026, 1, 1, tzinfo=UTC), [b"1", b"2"])],
)
@in_virtual_time
async def test_new_group_starts_where_it_says(start: Any, expected: list[bytes]) -> None:
    broker = one_queue(b"0", b"1", b"2")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", start=start) as messages:
        got = await messages.take(3, wait=5)
        await asyncio.sleep(1)
        assert [message.body for message in got] == expected
        broker.append("t", 0, b"new")
        message = await messages.get(5)
        assert message is not None
        assert message.body == b"new"


@in_virtual_time
async def test_group_goes_on_at_its_offset_whatever_start_says() -> None:
    broker = one_queue(b"0", b"1", b"2")
    broker.offsets["g", "t", 0] = 2
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", start="earliest") as messages:
        assert [message.body for message in await messages.take(3, wait=5)] == [b"2"]


@pytest.mark.parametrize("start", ["latest", datetime(2026, 1, 1, tzinfo=UTC)])
@in_virtual_time
async def test_where_a_group_starts_is_committed_before_anything_is_pulled(start: Any) -> None:
    """A member that is killed before it committed would else leave a group that starts behind what it was given."""
    broker = one_queue(b"0", b"1", b"2")
    unanswered = [1, 1]
    stood: list[int | None] = []

    def commit(peer: Any, request: Any) -> bytes | None:
        return None if request.ext.topic == "t" and unanswered and unanswered.pop() else broker.usual(peer, request)

    def pull(peer: Any, request: Any) -> bytes | None:
        if request.ext.topic == "t":
            stood.append(broker.offsets.get(("g", "t", 0)))
        return broker.usual(peer, request)

    refused = [1]

    def query(peer: Any, request: Any) -> bytes | None:
        if request.ext.topic == "t" and refused and refused.pop():
            return encode_response(request, 1, "not now")
        return broker.usual(peer, request)

    broker.on |= {COMMIT: commit, PULL: pull, RequestCode.QUERY_CONSUMER_OFFSET: query}
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", start=start) as messages:
        await asyncio.sleep(4)
        broker.append("t", 0, b"3")  # while the commit has no answer: where it starts stays the same
        assert await messages.get(20) is not None
    assert stood[0] == (3 if start == "latest" else 1)


def test_first_commit_that_is_refused_keeps_no_message_back_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        broker = one_queue(b"0")
        broker.on[COMMIT] = lambda _, request: encode_response(request, 1, "no room")
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g", start="latest") as messages:
            await asyncio.sleep(1)
            broker.append("t", 0, b"1")
            assert await messages.get(5) is not None
            del broker.on[COMMIT]
            await asyncio.sleep(5)
            assert broker.offsets["g", "t", 0] == 1

    run(test())
    assert len([line for line in caplog.messages if "topic='t'" in line and "no room" in line]) == 1


@in_virtual_time
async def test_group_that_has_an_offset_or_starts_at_the_earliest_says_nothing_first() -> None:
    broker = one_queue(b"0")
    broker.offsets["g", "t", 0] = 1
    broker.on[COMMIT] = lambda _, request: encode_response(request, 1, "no")
    async with client_of(broker.network()) as mq:
        for group, start in (("g", "latest"), ("h", "earliest")):
            async with mq.consumer("t", group=group, start=start):
                await asyncio.sleep(0.5)
                assert [pull.ext.group for pull in broker.requests(PULL) if pull.ext.topic == "t"][-1] == group
                assert broker.requests(COMMIT) == []
            broker.seen.clear()


@in_virtual_time
async def test_tags_are_filtered_by_text_and_passed_over() -> None:
    broker = one_queue(b"a", b"b", b"c")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", tags="a || c") as messages:
        got = await messages.take(3, wait=5)
        assert [message.tag for message in got] == ["a", "c"]
        got.ack()
        await asyncio.sleep(1.5)
    assert broker.offsets["g", "t", 0] == 3
    (request, *_) = [pull for pull in broker.requests(PULL) if pull.ext.topic == "t"]
    assert (request.ext.subscription, request.ext.expression_type) == ("a || c", "TAG")
    assert request.ext.sys_flag == 6


@in_virtual_time
async def test_commit_never_passes_an_open_message() -> None:
    broker = one_queue(b"0", b"1", b"2")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        zero, one, two = await messages.take(3, wait=5)
        two.ack()
        one.ack()
        await asyncio.sleep(3)
        assert broker.offsets["g", "t", 0] == 0
        zero.ack()
        await asyncio.sleep(1.5)
        assert broker.offsets["g", "t", 0] == 3


@in_virtual_time
async def test_pull_that_a_broker_handles_late_does_not_undo_the_commit_sent_behind_it() -> None:
    """RocketMQ handles pulls and commits on different threads, and stores what it handles last."""
    broker = one_queue(b"0")
    pulls: list[int] = []

    def late(peer: Any, request: Any) -> bytes | None:
        fields = request.ext
        if fields.sys_flag & PullFlag.COMMIT_OFFSET:
            key = (fields.group, fields.topic, fields.queue_id)
            asyncio.get_running_loop().call_later(0.2, broker.offsets.__setitem__, key, fields.commit_offset)
        pulls.append(fields.queue_offset)
        return broker._answer_pull(peer, request, park=True)

    broker.on[PULL] = late
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        while 1 not in pulls:
            await asyncio.sleep(0.01)  # the next pull is under way, and the message is still open
        message.ack()
    await asyncio.sleep(1)
    assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
async def test_next_commit_of_a_queue_waits_for_the_answer_of_the_one_before() -> None:
    broker = one_queue(b"0", b"1", b"2")
    open_now, together, told = 0, 0, []

    def slow(peer: Any, request: Any) -> bytes | None:
        nonlocal open_now, together
        if request.ext.topic != "t":
            return broker.usual(peer, request)
        open_now += 1
        together = max(together, open_now)

        def done() -> None:
            nonlocal open_now
            open_now -= 1
            told.append(request.ext.commit_offset)
            peer.send(encode_response(request, 0))

        asyncio.get_running_loop().call_later(0.9, done)
        return None

    broker.on[COMMIT] = slow
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        zero, *rest = await messages.take(3, wait=5)
        zero.ack()
        while not open_now:
            await asyncio.sleep(0.01)
        for message in rest:
            message.ack()  # leaving commits too, while the commit of the loop is still under way
    assert together == 1
    assert told == [1, 3]


@in_virtual_time
async def test_last_commit_of_a_queue_waits_for_the_one_under_way() -> None:
    """A broker handles them on several threads: the older one would undo the newer one."""
    broker = one_queue(b"0", b"1", b"2")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        zero, *rest = await messages.take(3, wait=5)
        await asyncio.sleep(2.5)
        assert broker.offsets["g", "t", 0] == 0  # the broker knows one: those that follow need not go alone
        first: list[int] = []

        def slow(peer: Any, request: Any) -> bytes | None:
            if request.ext.topic != "t" or first:
                return broker.usual(peer, request)
            first.append(request.ext.commit_offset)
            asyncio.get_running_loop().call_later(0.5, lambda: peer.send(broker.usual(peer, request)))
            return None

        broker.on[COMMIT] = slow
        zero.ack()
        while not first:
            await asyncio.sleep(0.01)
        for message in rest:
            message.ack()
    await asyncio.sleep(1)
    assert first == [1]
    assert broker.offsets["g", "t", 0] == 3


@in_virtual_time
async def test_commit_is_said_again_to_a_broker_that_was_started_again() -> None:
    """It may have forgotten; nothing needs to move for that."""
    broker = one_queue(b"0")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        message.ack()
        await asyncio.sleep(1.5)
        said = len([request for request in broker.requests(COMMIT) if request.ext.topic == "t"])
        await asyncio.sleep(5)
        assert len([request for request in broker.requests(COMMIT) if request.ext.topic == "t"]) == said
        broker.stop()
        broker.offsets["g", "t", 0] = 0
        broker.start()
        await asyncio.sleep(10)
        assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
async def test_a_late_commit_of_the_member_before_does_not_stand() -> None:
    """The queue changed hands, and the old owner's last word comes behind the new owner's first. Nothing moves after that."""
    broker = one_queue(b"0")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        message.ack()
        await asyncio.sleep(1.5)
        assert broker.offsets["g", "t", 0] == 1
        broker.offsets["g", "t", 0] = 0
        await asyncio.sleep(12)
        assert broker.offsets["g", "t", 0] == 1


def test_refused_commit_is_tried_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = one_queue(b"0")
        refused: list[int] = []

        def refuse(peer: Any, request: Any) -> bytes | None:
            if len(refused) < 4:
                refused.append(1)
                return encode_response(request, 1, "the disk is full")
            return broker.usual(peer, request)

        broker.on[COMMIT] = refuse
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
            message = await messages.get(5)
            assert message is not None
            message.ack()
            await asyncio.sleep(8)
            assert broker.offsets["g", "t", 0] == 1
        assert len(refused) == 4

    run(test())
    assert len([line for line in caplog.messages if "topic='t'" in line and "the disk is full" in line]) == 1


@pytest.mark.parametrize("answered", [True, False])
@in_virtual_time
async def test_offset_is_said_again_when_it_is_not_known_what_the_broker_stored_in_between(answered: bool) -> None:
    """The broker sends the reader back and stores the offset there, but refuses it, or does not answer. Then the reader is
    where it was."""
    broker = one_queue(b"0")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        message.ack()
        await asyncio.sleep(1.5)
        assert broker.offsets["g", "t", 0] == 1

        def back_to_0(peer: Any, request: Any) -> bytes | None:
            if request.ext.topic != "t":
                return broker.usual(peer, request)
            del broker.on[PULL]
            ext = {"suggestWhichBrokerId": 0, "nextBeginOffset": 0, "minOffset": 0, "maxOffset": 1}
            return encode_response(request, 21, "PULL_OFFSET_MOVED", ext)

        def store_and_refuse(peer: Any, request: Any) -> bytes | None:
            broker.usual(peer, request)
            return encode_response(request, 1, "stored, and then something else failed") if answered else None

        broker.on[COMMIT] = store_and_refuse
        broker.on[PULL] = back_to_0
        for peer, request in list(broker._parked):
            broker._unpark(peer, request)
        again = await messages.get(5)
        assert again is not None
        for _ in range(4):
            await asyncio.sleep(1)
            assert await mq.healthy()  # the connection is not dropped as silent
        assert broker.offsets["g", "t", 0] == 0
        del broker.on[COMMIT]
        again.ack()
        await asyncio.sleep(4.5)  # the commit without an answer ends first
        assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
async def test_unacknowledged_message_comes_again_to_the_next_consumer() -> None:
    broker = one_queue(b"0", b"1")
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g") as messages:
            first, second = await messages.take(2, wait=5)
            first.ack()
        assert broker.offsets["g", "t", 0] == 1  # at once, not with the next tick
        second.ack()  # too late: the queue is not ours any more
        async with mq.consumer("t", group="g") as messages:
            assert [message.body for message in await messages.take(2, wait=5)] == [b"1"]


@in_virtual_time
async def test_retry_hands_back_with_a_level_and_comes_again_with_its_topic() -> None:
    broker = one_queue(b"0")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", retries=5) as messages:
        message = await messages.get(5)
        assert message is not None
        await message.retry(delay=20)
        assert await messages.get(29) is None
        again = await messages.get(5)
        assert again is not None
        assert (again.topic, again.attempt, again.message_id) == ("t", 2, "0")
        again.ack()
        await asyncio.sleep(1.5)
    (back,) = broker.requests(BACK)
    assert (back.ext.group, back.ext.delay_level, back.ext.max_reconsume_times) == ("g", 4, 5)
    assert (back.ext.offset, back.ext.origin_msg_id, back.ext.origin_topic) == (5000, "0", "t")
    assert broker.offsets["g", "t", 0] == 1
    assert broker.offsets["g", "%RETRY%g", 0] == 1


@in_virtual_time
async def test_retry_of_a_topic_that_nobody_here_consumes_goes_back_until_somebody_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = one_queue()
    broker.topics.add("other")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        refused = [1]
        broker.on[BACK] = lambda peer, request: (
            encode_response(request, 1, "disk") if refused and refused.pop() else broker.usual(peer, request)
        )
        broker.append("%RETRY%g", 0, b"x", retried("other"), 1)
        assert await messages.get(60) is None
        for back in broker.requests(BACK):
            assert (back.ext.origin_topic, back.ext.not_consumed, back.ext.max_reconsume_times) == ("other", True, 16)
            assert back.ext.failure.startswith(
                "NotConsumed: group g has a member that does not consume topic other: client "
            )
        assert len(broker.requests(BACK)) > 2
        (said,) = [record.getMessage() for record in caplog.records if "does not consume that topic" in record.msg]
        assert "topic other was redelivered to group g" in said
        async with mq.consumer("other", group="g") as others:
            message = await others.get(20)
            assert message is not None
            assert message.topic == "other"
            message.ack()


@in_virtual_time
async def test_retry_that_names_no_topic_goes_to_the_only_consumer() -> None:
    broker = one_queue()
    async with client_of(broker.network()) as mq, mq.consumer(["t", "u"], group="g") as messages:
        broker.append("%RETRY%g", 0, b"x")
        message = await messages.get(20)
        assert message is not None
        message.ack()
    assert broker.requests(BACK) == []


@in_virtual_time
async def test_dead_letters_are_read_as_messages_of_their_own_queue() -> None:
    broker = one_queue()
    broker.topics.add("%DLQ%g")
    broker.append("%DLQ%g", 0, b"dead", retried("t"), 16)
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("t", group="h") as messages,
        mq.consumer("%DLQ%g", group="h") as dead,
    ):
        assert await dead.get(5) is not None
        assert await messages.get(5) is None


@in_virtual_time
async def test_dead_letter_that_its_reader_hands_back_comes_to_its_reader() -> None:
    broker = one_queue()
    broker.topics.add("%DLQ%g")
    text = properties.encode({"RETRY_TOPIC": "t", "DLQ_ORIGIN_TOPIC": "t", "UNIQ_KEY": "U"})
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("%DLQ%g", group="h") as dead,
        mq.consumer("u", group="h"),
    ):
        broker.append("%RETRY%h", 0, b"dead", text, 2)
        assert await dead.get(5) is not None


def dead_letters(*ids: str) -> ScriptedBroker:
    """One in ``%DLQ%a``, one in ``%DLQ%b``, and so on."""
    broker = one_queue()
    for group, number in zip("abc", ids, strict=False):
        broker.topics.add(f"%DLQ%{group}")
        text = properties.encode({"RETRY_TOPIC": "t", "DLQ_ORIGIN_TOPIC": "t", "UNIQ_KEY": number})
        broker.append(f"%DLQ%{group}", 0, b"dead", text, 16)
    return broker


@in_virtual_time
async def test_dead_letter_that_is_handed_back_comes_to_the_reader_of_its_own_topic_each_time() -> None:
    broker = dead_letters("A", "B")
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("%DLQ%a", group="h") as a,
        mq.consumer("%DLQ%b", group="h") as b,
    ):
        for reader, number in ((a, "A"), (b, "B"), (a, "A"), (a, "A"), (b, "B")):
            message = await reader.get(5)
            assert message is not None
            assert message.message_id == number
            await message.retry(1)
        assert len(broker.requests(BACK)) == 5  # none of them by the client itself


@in_virtual_time
async def test_two_dead_letters_of_one_message_come_to_one_reader_each() -> None:
    """It went dead in two groups: both letters have its id."""
    broker = dead_letters("U", "U")
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("%DLQ%a", group="h") as a,
        mq.consumer("%DLQ%b", group="h") as b,
    ):
        for readers in ((a, b), (a, b), (b, a)):
            for reader in readers:
                message = await reader.get(5)
                assert message is not None
                await message.retry(1)
        of_a, of_b = await a.get(5), await b.get(5)
        assert of_a is not None
        assert of_b is not None
        await of_b.retry(30)
        for _ in range(3):
            await of_a.retry(1)
            of_a = await a.get(5)
            assert of_a is not None
        of_a.ack()
        assert await b.get(40) is not None


@in_virtual_time
async def test_dead_letter_whose_reader_left_goes_back_until_there_is_one() -> None:
    broker = dead_letters("A", "B")
    async with client_of(broker.network()) as mq, mq.consumer("%DLQ%b", group="h") as b:
        async with mq.consumer("%DLQ%a", group="h") as a:
            message = await a.get(5)
            assert message is not None
            await message.retry(1)
        assert await b.get(5) is not None
        assert await b.get(20) is None
        async with mq.consumer("%DLQ%a", group="h") as a:
            message = await a.get(30)
            assert message is not None
            assert message.message_id == "A"


@in_virtual_time
async def test_reject_goes_to_the_dead_letter_queue() -> None:
    broker = one_queue(b"0")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        await message.reject()
    assert [back.ext.delay_level for back in broker.requests(BACK)] == [-1]
    assert broker.visible("%DLQ%g") == [b"dead"]


@in_virtual_time
async def test_message_that_cannot_be_handed_back_is_delivered_again_here() -> None:
    broker = one_queue(b"0")
    broker.on[BACK] = lambda _, request: encode_response(request, 1, "disk")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        await message.retry()
        message.ack()  # as ``processing`` and ``App`` do where a handler called ``retry`` and returned
        await asyncio.sleep(1.5)
        assert broker.offsets["g", "t", 0] == 0  # still open
        again = await messages.get(10)
        assert again is not None
        assert again.body == b"0"
        again.ack()
        await asyncio.sleep(1.5)
        assert broker.offsets["g", "t", 0] == 1


@in_virtual_time
async def test_message_that_could_not_be_handed_back_is_not_delivered_here_when_its_queue_is_gone() -> None:
    broker = one_queue(b"0")
    broker.on[BACK] = lambda _, request: encode_response(request, 1, "disk")
    async with client_of(broker.network()) as mq, mq.consumer("u", group="g") as other:
        async with mq.consumer("t", group="g") as messages:
            message = await messages.get(5)
            assert message is not None
            await message.retry()
        broker.on.clear()
        async with mq.consumer("t", group="g") as messages:
            await asyncio.sleep(10)
            assert len(await messages.take(5, wait=0)) == 1
        assert await other.get(0) is None


@pytest.mark.parametrize("pause_s", [0, 4], ids=["while it is on its way", "before it is delivered again here"])
def test_handing_back_that_fails_while_the_consumer_leaves_is_told_once(
    pause_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        broker = one_queue(b"0")
        broker.on[BACK] = lambda _, request: None
        async with client_of(broker.network(), timeout=3) as mq:
            async with mq.consumer("t", group="g") as messages:
                message = await messages.get(5)
                assert message is not None
                handing_back = asyncio.create_task(message.retry())
                await asyncio.sleep(pause_s)
            await handing_back
            await asyncio.sleep(20)

    run(test())
    said = [line for line in caplog.messages if "handed back" in line]
    assert len(said) == 1
    assert ("delivered again here" in said[0]) == (pause_s > 0)


@in_virtual_time
async def test_offset_that_is_gone_jumps_to_where_the_broker_says() -> None:
    broker = one_queue(b"0", b"1", b"2")
    broker.offsets["g", "t", 0] = 99
    said: list[int] = []

    def moved(peer: Any, request: Any) -> bytes | None:
        if request.ext.topic == "t" and request.ext.queue_offset == 99:
            said.append(1)
            ext = {"suggestWhichBrokerId": 0, "nextBeginOffset": 2, "minOffset": 2, "maxOffset": 3}
            return encode_response(request, 21, "PULL_OFFSET_MOVED", ext)
        return broker.usual(peer, request)

    broker.on[PULL] = moved
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        assert [message.body for message in await messages.take(3, wait=5)] == [b"2"]
    assert said == [1]


@pytest.mark.parametrize("code", [2, 16, 26, 215, 1500])
@in_virtual_time
async def test_refused_pull_is_tried_again(code: int) -> None:
    broker = one_queue(b"0")
    refused: list[int] = []

    def refuse(peer: Any, request: Any) -> bytes | None:
        if len(refused) < 3:
            refused.append(1)
            return encode_response(request, code, "no")
        return broker.usual(peer, request)

    broker.on[PULL] = refuse
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(30)
        assert message is not None


def test_refused_pull_is_said_once_until_it_changes_or_went_well(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broker = one_queue(b"0")
        codes = [16] * 5 + [26] * 5 + [0] + [26] * 5

        def refuse(peer: Any, request: Any) -> bytes | None:
            code = codes.pop(0) if codes and request.ext.topic == "t" else 0
            return encode_response(request, code, "no") if code else broker.usual(peer, request)

        broker.on[PULL] = refuse
        async with client_of(broker.network()) as mq, mq.consumer("t", group="g"):
            while codes:
                await asyncio.sleep(1)

    run(test())
    said = [line for line in caplog.messages if line.startswith("pulling ")]
    assert [line[line.index("(code") :].split(")")[0] for line in said] == ["(code 16", "(code 26", "(code 26"]


@in_virtual_time
async def test_broker_restart_is_survived() -> None:
    broker = one_queue(b"0")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        first = await messages.get(5)
        assert first is not None
        first.ack()
        broker.stop()
        await asyncio.sleep(10)
        broker.start()
        broker.append("t", 0, b"1")
        second = await messages.get(10)
        assert second is not None
        assert second.body == b"1"
        second.ack()
        await asyncio.sleep(1.5)
    assert broker.offsets["g", "t", 0] == 2


@in_virtual_time
async def test_prefetch_bounds_what_is_pulled_ahead() -> None:
    broker = one_queue(*(str(number).encode() for number in range(3_000)))
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", prefetch=100) as messages:
        await asyncio.sleep(30)
        pulls = [request for request in broker.requests(PULL) if request.ext.topic == "t"]
        assert len(pulls) == 1
        got = 0
        while got < 3_000:
            batch = await messages.take(500, wait=5)
            got += len(batch)
            batch.ack()
        await asyncio.sleep(1.5)
    assert broker.offsets["g", "t", 0] == 3_000


@in_virtual_time
async def test_consumer_that_stalls_holds_up_its_own_retries_and_not_those_of_another_one() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.update(("stalls", "goes"))
    async with (
        client_of(broker.network()) as mq,
        mq.consumer("stalls", group="g", prefetch=5) as stalls,
        mq.consumer("goes", group="g") as goes,
    ):
        for number in range(300):
            broker.append("stalls", 0, b"%d" % number)
        await asyncio.sleep(1)
        for attempt in range(4):
            for _ in range(50):
                broker.append("%RETRY%g", 0, b"x", retried("stalls"))
            broker.append("%RETRY%g", 0, b"x", retried("goes"), attempt)
            message = await goes.get(5)
            assert message is not None
            message.ack()
        for _ in range(2_000):
            broker.append("%RETRY%g", 0, b"x", retried("stalls"))
        await asyncio.sleep(60)
        got = await stalls.take(3_000, wait=5)
        assert len(got) <= 5 + 1_000  # what waits here is bounded
        while len(got) < 300 + 4 * 50 + 2_000:
            more = await stalls.take(3_000, wait=30)
            assert more
            got += more


@in_virtual_time
async def test_prefetch_is_bounded_in_bytes_too_and_a_message_larger_than_that_still_comes() -> None:
    broker = one_queue()
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        feed = messages._feed
        assert feed is not None
        feed._capacity._bytes_max = 100_000
        broker.append("t", 0, b"%d" % 0 + b"." * 1_000)
        await asyncio.sleep(1)
        for number in range(1, 1_000):
            broker.append("t", 0, b"%d" % number + b"." * 1_000)
        await asyncio.sleep(30)
        assert feed._capacity._bytes <= 100_000 + 1_003
        numbers: list[int] = []
        while len(numbers) < 1_000:
            message = await messages.get(5)
            assert message is not None
            numbers.append(int(message.body.rstrip(b".")))
            message.ack()
            assert feed._capacity._bytes <= 100_000 + 1_003
        assert numbers == list(range(1_000))
        for _ in range(3):
            broker.append("t", 0, b"x" * 200_000)
            message = await messages.get(5)
            assert message is not None
            assert len(message.body) == 200_000
        assert feed._capacity._bytes == 0


@in_virtual_time
async def test_damaged_body_is_reported_and_neither_handed_out_nor_passed(caplog: pytest.LogCaptureFixture) -> None:
    broker = one_queue(b"zero", b"one", b"two")
    log = broker.logs["t", 0]
    good = log[1]
    log[1] = good._replace(body=b"0ne")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        first = await messages.get(5)
        assert first is not None
        assert first.body == b"zero"
        first.ack()
        assert await messages.get(20) is None
        assert broker.offsets["g", "t", 0] == 1
        (said, *again) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "message one, topic t, queue 0 of broker-a, offset 1, is damaged" in said.getMessage()
        assert 1 < len(again) < 6
        log[1] = good  # it was damaged on its way
        assert [message.body for message in await messages.take(2, wait=60)] == [b"one", b"two"]


@in_virtual_time
async def test_body_that_cannot_be_unpacked_is_reported_and_what_is_before_it_is_handed_out_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = one_queue(b"zero", b"one", b"two")
    log = broker.logs["t", 0]
    good = log[1]
    log[1] = good._replace(sys_flag=1 | ZLIB)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        first = await messages.get(5)
        assert first is not None
        await asyncio.sleep(30)
        first.ack()
        assert await messages.get(2) is None
        assert broker.offsets["g", "t", 0] == 1
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert "message one, topic t, queue 0 of broker-a, offset 1, cannot be unpacked" in said[0]
        assert "To skip it, set the group's offset to 2" in said[0]
        log[1] = good
        assert [message.body for message in await messages.take(2, wait=60)] == [b"one", b"two"]


def packed_into(broker: ScriptedBroker, queue: int, body: bytes) -> None:
    broker.append("t", queue, zlib.compress(body))
    log = broker.logs["t", queue]
    log[-1] = log[-1]._replace(sys_flag=1 | ZLIB)


@in_virtual_time
async def test_what_is_unpacked_of_all_queues_together_is_bounded_and_nothing_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: small answers cannot fill the consumer's memory, however many queues bring one at once.

    Method: 16 queues hold 20 bodies each that are large when unpacked. What was unpacked and not taken is counted.
    """
    unpacked = [0, 0]

    def counted(pulled: PulledMessage) -> PulledMessage:
        one = unpack(pulled)
        unpacked[0] += len(one.message.body)
        unpacked[1] += 1
        return one

    monkeypatch.setattr(queue_puller, "unpack", counted)
    sent = [bytes([queue, number]) * 5_000 for queue in range(16) for number in range(20)]
    broker = ScriptedBroker(queues=16)
    broker.topics.add("t")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        assert messages._feed is not None
        messages._feed._capacity._bytes_max = 25_000  # two and a half of them
        for place, body in enumerate(sent):
            packed_into(broker, place // 20, body)
        await asyncio.sleep(30)
        pulls = [request.ext.queue_id for request in broker.requests(PULL) if request.ext.topic == "t"]
        assert sorted(pulls) == list(range(16))  # each was answered, and waits
        assert unpacked == [30_000, 3]
        got: list[bytes] = []
        while len(got) < len(sent):
            message = await messages.get(60)
            assert message is not None
            got.append(message.body)
            message.ack()
            await asyncio.sleep(0.01)
            assert unpacked[1] <= len(got) + 3
        await asyncio.sleep(2)
        assert [broker.offsets["g", "t", queue] for queue in range(16)] == [20] * 16
    assert sorted(got) == sorted(sent)
    for queue in range(16):
        mine = [body for body in got if body[0] == queue]
        assert mine == sorted(mine)


@in_virtual_time
async def test_a_body_larger_than_all_that_may_wait_comes_alone() -> None:
    broker = ScriptedBroker(queues=4)
    broker.topics.add("t")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        feed = messages._feed
        assert feed is not None
        feed._capacity._bytes_max = 1_000
        for queue in range(4):
            packed_into(broker, queue, b"x" * 50_000)
        for _ in range(4):
            await asyncio.sleep(5)
            assert feed._capacity._bytes == 50_000
            message = await messages.get(5)
            assert message is not None


@in_virtual_time
async def test_body_that_cannot_be_unpacked_is_waited_for_and_what_came_before_it_comes_once() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    packed_into(broker, 0, b"good")
    broker.append("t", 0, b"no zlib")
    log = broker.logs["t", 0]
    log[1] = log[1]._replace(sys_flag=1 | ZLIB)
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        (message,) = await messages.take(5, wait=5)
        message.ack()
        assert await messages.get(30) is None
        assert broker.offsets["g", "t", 0] == 1
        log[1] = log[1]._replace(sys_flag=0)  # set right
        assert [one.body for one in await messages.take(5, wait=10)] == [b"no zlib"]


@in_virtual_time
async def test_what_waits_in_an_answer_comes_again_to_whoever_has_the_queue_next() -> None:
    broker = one_queue(*(b"%d" % number for number in range(10)))
    async with client_of(broker.network()) as mq:
        async with mq.consumer("t", group="g", prefetch=2) as messages:
            await asyncio.sleep(5)  # two wait here, eight in the answer
            for expected in (b"0", b"1", b"2"):
                message = await messages.get(5)
                assert message is not None
                assert message.body == expected
                message.ack()
            await asyncio.sleep(3)
            assert broker.offsets["g", "t", 0] == 3  # also before the answer is through
        async with mq.consumer("t", group="g") as messages:
            assert [one.body for one in await messages.take(10, wait=5)] == [b"%d" % n for n in range(3, 10)]


@in_virtual_time
async def test_damaged_body_of_a_tag_that_is_not_wanted_holds_nobody() -> None:
    broker = one_queue(b"a", b"b")
    log = broker.logs["t", 0]
    log[0] = log[0]._replace(body=b"x")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g", tags="b") as messages:
        assert [message.body for message in await messages.take(1, wait=5)] == [b"b"]


def test_feed_skips_what_belongs_to_another_member_by_now() -> None:
    class Some(NamedTuple):
        body: bytes

    class Gone:
        released = True
        is_retry = False

    class Here:
        released = False
        is_retry = False

    feed = Feed(2)
    feed.put(Gone(), Some(b"lost"))  # type: ignore[arg-type]
    feed.put(Here(), Some(b"kept"))  # type: ignore[arg-type]
    assert feed.take() == Some(b"kept")  # type: ignore[comparison-overlap]
    assert feed.take() is None


@pytest.mark.parametrize(("delay_s", "level"), [(0, 1), (1, 1), (1.1, 2), (10, 3), (7_200, 18), (99_999, 18)])
def test_delay_is_rounded_up_to_a_level(delay_s: float, level: int) -> None:
    assert delay_level(delay_s) == level
