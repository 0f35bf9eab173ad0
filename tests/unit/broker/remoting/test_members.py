"""Heartbeats, members, leaving, queue locks."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.in_process import Hand, ShiftedClock, serving
from tests.support.raw_client import RawClient, command
from tests.support.waiting import soon, until

from halfmq import limits
from halfmq.broker.services.subscription_conflicts import SubscriptionConflicts
from halfmq.core.commands import LockQueues
from halfmq.core.decide import DECIDE
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability


async def pushed_group(client: RawClient) -> str:
    push = await soon(client.pushes.get())
    assert (push.code, push.flag) == (40, 2)
    return push.ext["consumerGroup"]


async def members(client: RawClient, group: str = "C") -> list[str]:
    answer = await client.ask(38, {"consumerGroup": group})
    found: list[str] = json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


async def test_members_are_told_over_their_connections_when_one_comes_leaves_or_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        first, second, third = [await running.client() for _ in range(3)]
        assert (await first.ask(38, {"consumerGroup": "C"})).code == 1
        for client, name in ((first, "one"), (second, "two"), (third, "three")):
            answer = await client.heartbeat(name, consumers={"C": ["T"]})
            assert (answer.code, answer.ext) == (0, {"HMQ_VERSION": "1"}), "what this broker can"
            assert await pushed_group(client) == "C"
        assert [await pushed_group(first) for _ in range(2)] == ["C", "C"]
        assert sorted(await members(first)) == ["one", "three", "two"]
        await third.ask(35, {"clientID": "three", "consumerGroup": "C"})
        assert await pushed_group(first) == "C"
        await second.close()
        assert await pushed_group(first) == "C"
        assert await members(first) == ["one"]


async def test_the_response_says_from_which_member_of_a_group_the_subscription_differs(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        first, second = [await running.client() for _ in range(2)]
        assert (await first.heartbeat("one", consumers={"C": ["T"]})).ext == {"HMQ_VERSION": "1"}
        ext = (await second.heartbeat("two", consumers={"C": ["U"]})).ext
        assert "group C: client two subscribes to U '*', client one subscribes to T '*'" in ext["HMQ_CONFLICT"]
        assert (
            "client one subscribes to T" in (await first.heartbeat("one", consumers={"C": ["T"]})).ext["HMQ_CONFLICT"]
        )
        assert (await second.heartbeat("two", consumers={"C": ["T"]})).ext == {"HMQ_VERSION": "1"}
        assert (await first.heartbeat("one", consumers={"C": ["T"]})).ext == {"HMQ_VERSION": "1"}


# --- what comes behind a heartbeat whose groups are being made ----------------------------------------------------


async def test_what_waits_behind_a_heartbeat_is_little_and_is_counted(tmp_path: Path) -> None:
    """35 and 34 may be as large as a frame, with a body that nobody reads."""
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client = await running.client()
        members, peers = running.broker._members, running.broker._peers
        intake = peers.intake
        asked = asyncio.create_task(client.heartbeat("me", consumers={"C": ["T"]}))
        await until(lambda: hand.flush.asked is not None)
        before = intake.taken
        ext = {"clientID": "me", "consumerGroup": "x" * 100_000}
        client.write(command(35, 4_711, ext, b"x" * 9_000, remark="x" * 9_000))
        client.write(command(34, 4_712, ext, b'{"clientID":"me"}', remark="x" * 9_000))
        await until(lambda: peers.waiting == 2)
        await until(lambda: intake.taken - before >= 400_000)
        for one in members._waiting[next(iter(members._waiting))]:
            request = one.failed.args[1]
            assert (request.body, request.remark) == (b"", None)
        hand.flush.run()
        assert (await asked).code == 0
        assert (await soon(client.expect(4_711))).code == 0


async def lock(client: RawClient, code: int, who: str, queues: list[int]) -> list[int]:
    body = {
        "clientId": who, "consumerGroup": "C", "onlyThisBroker": False,
        "mqSet": [{"brokerName": "halfmq", "queueId": queue, "topic": "T"} for queue in queues],
    }  # fmt: skip
    answer = await client.ask(code, body=json.dumps(body).encode())
    assert answer.code == 0
    return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]) if answer.body else []


async def test_a_client_locks_queues_and_releases_them(tmp_path: Path) -> None:
    """Who gets a queue: ``services/test_members``."""
    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        await one.send("T", b"x", queues=2)
        await one.heartbeat("one", consumers={"C": ["T"]})
        assert await lock(one, 41, "one", [0, 1]) == [0, 1]
        await lock(one, 42, "one", [1])
        assert await lock(two, 41, "two", [0, 1]) == [1]


def heartbeat_of(topic: str, expression: str, kind: str = "TAG") -> bytes:
    item = {"topic": topic, "subString": expression, "expressionType": kind, "subVersion": 1}
    consumer = {
        "groupName": "C", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [item],
    }  # fmt: skip
    return json.dumps({"clientID": "me@1", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


async def test_a_language_that_nobody_knows_is_not_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        sent = command(34, 77, {}, heartbeat_of("T", "*"))
        client.write(sent.replace(b'"JAVA"', b'"JAVX"'))
        assert (await client.expect(77)).code == 0
        (member,) = running.state.session.consumers["C"].members.values()
        assert member.language == "OTHER"


async def test_a_restart_keeps_queues_for_who_handles_them(tmp_path: Path) -> None:
    """A Java client handles its queues for 30 s without asking anybody, also while the broker is not there."""
    clock = ShiftedClock()
    async with serving(tmp_path, clock=clock) as running:
        one, two = await running.client(), await running.client()
        await one.send("T", b"m", queues=4)
        for client, name in ((one, "one"), (two, "two")):
            await client.heartbeat(name, consumers={"C": ["T"]})
        assert await lock(one, 41, "one", [0, 1]) == [0, 1]
        assert await lock(two, 41, "two", [2]) == [2]
        running.broker.close()  # before the clients are
    async with serving(tmp_path, clock=clock) as running:
        two = await running.client()
        await two.heartbeat("two", consumers={"C": ["T"]})
        assert await lock(two, 41, "two", [0, 1, 2, 3]) == [2, 3]
        one = await running.client()
        assert await lock(one, 41, "one", [0]) == [0]
        clock.passed_ms += limits.QUEUE_LOCK_KEPT_MS
        assert await lock(two, 41, "two", [0, 1]) == [1]


async def test_a_lock_is_answered_when_a_crash_cannot_take_the_holder_back(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        client = await running.client()
        made = asyncio.gather(client.heartbeat("one", consumers={"C": ["T"]}), client.send("T", b"m", queues=4))
        await until(lambda: not hand.flush.run() and made.done())
        waiting = asyncio.create_task(lock(client, 41, "one", [0]))
        await until(lambda: running.state.holders)
        assert await members(client) == ["one"], "what comes later on its connection is answered"
        assert not waiting.done()
        hand.flush.run()
        assert await soon(waiting) == [0]


@pytest.mark.parametrize("leaves", ["cut off", "drain"])
async def test_who_leaves_is_not_waited_for_after_a_restart_unless_the_broker_cut_it_off(
    tmp_path: Path, leaves: str
) -> None:
    async with serving(tmp_path) as running:
        one = await running.client()
        await one.send("T", b"m", queues=4)
        await one.heartbeat("one", consumers={"C": ["T"]})
        assert await lock(one, 41, "one", [0]) == [0]
        if leaves == "cut off":
            await one.close()
            await until(lambda: not running.state.holders)
        else:
            await running.broker.drain()
            assert running.state.holders
    async with serving(tmp_path) as running:
        two = await running.client()
        assert await lock(two, 41, "two", [0]) == ([] if leaves == "drain" else [0])


async def test_subscription_is_checked_before_a_consumer_starts(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()

        async def check(expression: str, kind: str) -> int:
            body = {
                "clientId": "c",
                "group": "C",
                "subscriptionData": {"topic": "T", "subString": expression, "expressionType": kind},
            }
            return (await client.ask(46, body=json.dumps(body).encode())).code

        assert await check("a || b", "TAG") == 0
        assert await check("a > 1", "SQL92") == 1
        assert await check("||", "TAG") == 23


async def test_a_subscription_that_gets_nothing_is_said_with_client_and_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Java consumer that subscribes to one more topic, by SQL92, is never refused by anything that it looks at."""
    async with serving(tmp_path) as running:
        client = await running.client()
        for _ in range(3):
            assert (await client.ask(34, {}, heartbeat_of("T", "a > 5", "SQL92"))).code == 0
        (said,) = [record.getMessage() for record in caplog.records if record.name == "halfmq.unsupported_requests"]
        assert said.startswith("client me@1, group C: it subscribes to topic T by SQL92 'a > 5'")


async def test_a_heartbeat_that_is_refused_and_one_that_is_taken_in_part_are_code_29(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_FREE", 0)
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_PER_CONNECTION_EXEMPT", 0)
    async with serving(tmp_path, settings=BrokerSettings(undecided_groups_max=1)) as running:
        client = await running.client()
        refused = await client.heartbeat("me", producers=["no spaces"], consumers={"C": ["T"]})
        assert (refused.code, refused.ext) == (29, {})
        assert "producer group" in (refused.remark or "")
        assert not running.state.session.consumers
        in_part = await client.heartbeat("me", producers=["P", "Q"], consumers={"C": ["T"]})
        assert (in_part.code, in_part.ext) == (29, {"HMQ_VERSION": "1"})
        assert "--undecided-groups-max" in (in_part.remark or "")
        assert await members(client) == ["me"]


async def test_what_fails_while_it_waits_and_a_lock_whose_decision_failed_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("planted")

    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"x", queues=2)
        monkeypatch.setattr(SubscriptionConflicts, "heard", broken)
        monkeypatch.setattr(SubscriptionConflicts, "left", broken)
        monkeypatch.setitem(DECIDE, LockQueues, broken)
        answers = await asyncio.gather(
            client.heartbeat("me", consumers={"C": ["T"]}),
            client.ask(35, {"clientID": "me", "consumerGroup": "C"}),
        )
        body = {"clientId": "me", "consumerGroup": "C", "mqSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}]}
        answers.append(await client.ask(41, body=json.dumps(body).encode()))
        monkeypatch.undo()
    assert [(answer.code, "planted" in str(answer.remark)) for answer in answers] == [(1, True)] * 3
