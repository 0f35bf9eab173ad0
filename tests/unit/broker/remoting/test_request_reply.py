"""Replies (324, 325) go to the client that waits for them, and nowhere else."""

from pathlib import Path

from tests.support.in_process import serving
from tests.support.raw_client import RawClient, send_ext

from halfmq import limits

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def reply_ext(to: str = "asker", **properties: str) -> dict[str, str]:
    pairs = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", **({"REPLY_TO_CLIENT": to} if to else {}), **properties}
    return send_ext(REPLY_TOPIC, "Repliers", 0, pairs)


async def asker_and_replier(running: object) -> tuple[RawClient, RawClient]:
    asker, replier = [await running.client() for _ in range(2)]  # type: ignore[attr-defined]
    await asker.heartbeat("asker", producers=["Askers"])
    await replier.heartbeat("replier", producers=["Repliers"])
    return asker, replier


async def test_a_reply_is_pushed_to_the_client_that_asked_and_stored_nowhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        asker, replier = await asker_and_replier(running)
        before = running.state.log_end
        answer = await replier.ask(325, reply_ext(), b"the answer")
        assert (answer.code, answer.ext["msgId"], answer.ext["queueId"], answer.ext["queueOffset"]) == (
            0,
            "0",
            "0",
            "0",
        )
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        push = asker.pushes.get_nowait()
        assert (push.code, push.flag, push.body) == (326, 2, b"the answer")
        assert (push.ext["topic"], push.ext["producerGroup"], push.ext["queueId"]) == (REPLY_TOPIC, "Repliers", "0")
        assert push.ext["bornHost"].startswith("127.0.0.1:")
        assert push.ext["storeHost"] == f"127.0.0.1:{running.ports.broker}"
        pairs = dict(pair.split("\x01") for pair in push.ext["properties"].split("\x02") if pair)
        assert (pairs["CORRELATION_ID"], pairs["REPLY_TO_CLIENT"]) == ("c-1", "asker")
        assert pairs["PUSH_REPLY_TIME"] == push.ext["storeTimestamp"]
        # What clients of any version demand of the header.
        assert {"defaultTopic", "defaultTopicQueueNums", "sysFlag", "bornTimestamp", "flag"} <= set(push.ext)
        assert replier.pushes.empty()
        assert running.state.log_end == before


async def test_the_long_names_of_the_old_command_say_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        asker, replier = await asker_and_replier(running)
        short = reply_ext()
        names = {
            "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
            "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i",
        }  # fmt: skip
        answer = await replier.ask(324, {name: short[letter] for name, letter in names.items()}, b"old")
        assert (answer.code, asker.pushes.get_nowait().body) == (0, b"old")


async def test_a_reply_whose_asker_is_gone_or_not_named_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        asker, replier = await asker_and_replier(running)
        unnamed = await replier.ask(325, reply_ext(to=""), b"x")
        assert (unnamed.code, unnamed.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
        unknown = await replier.ask(325, reply_ext(to="nobody"), b"x")
        assert (unknown.code, unknown.remark) == (1, "push reply message fail, channel of <nobody> not found.")
        large = await replier.ask(325, reply_ext(), b"x" * (limits.BODY_BYTES_MAX + 1))
        assert large.code == 13
        again = await running.client()
        await again.heartbeat("asker", producers=["Askers"])
        await asker.close()
        assert (await replier.ask(325, reply_ext(), b"new")).code == 0
        assert again.pushes.get_nowait().body == b"new"
        await again.close()
        while running.broker._members.connection_of("asker") is not None:
            await replier.ask(38, {"consumerGroup": "none"})
        assert (await replier.ask(325, reply_ext(), b"x")).code == 1
        assert not running.broker._members._ids.keys() - running.broker._peers.connected.keys()


async def test_replies_have_a_route_without_a_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        route = await client.ask(105, {"topic": REPLY_TOPIC})
        assert route.code == 0
        assert b'"perm":6,"readQueueNums":1' in route.body
        assert REPLY_TOPIC not in running.state.topics_by_name
