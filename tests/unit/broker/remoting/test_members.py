"""Heartbeats, members, leaving, queue locks."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.in_process import Hand, ShiftedClock, serving
from tests.support.raw_client import RawClient, command
from tests.support.waiting import until

from halfmq import limits
from halfmq.broker.services.subscription_conflicts import SubscriptionConflicts
from halfmq.core.commands import LockQueues
from halfmq.core.decide import DECIDE
from halfmq.model.settings import BrokerSettings
from halfmq.store.store import Durability


async def pushed_group(client: RawClient) -> str:
    push = await asyncio.wait_for(client.pushes.get(), 2)
    assert (push.code, push.flag) == (40, 2)
    return push.ext["consumerGroup"]


async def members(client: RawClient, group: str = "C") -> list[str]:
    answer = await client.ask(38, {"consumerGroup": group})
    found: list[str] = json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


async def test_heartbeat_says_what_this_broker_can(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        answer = await (await running.client()).heartbeat("me", producers=["P"])
        assert (answer.code, answer.ext) == (0, {"HMQ_VERSION": "1"})


async def test_first_heartbeat_of_a_group_makes_it_and_its_retry_topic_before_it_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await client.ask(105, {"topic": "%RETRY%C"})).code == 17
        await client.heartbeat("me", consumers={"C": ["T"], "D": ["T"]})
        for group in "CD":
            assert (await client.ask(105, {"topic": f"%RETRY%{group}"})).code == 0
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(105, {"topic": "%RETRY%C"})).code == 0


async def test_all_members_are_told_when_one_comes_leaves_or_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        first, second, third = [await running.client() for _ in range(3)]
        await first.heartbeat("one", consumers={"C": ["T"]})
        assert await pushed_group(first) == "C"
        await second.heartbeat("two", consumers={"C": ["T"]})
        assert [await pushed_group(client) for client in (first, second)] == ["C", "C"]
        await third.heartbeat("three", consumers={"C": ["T"]})
        for client in (first, second, third):
            await pushed_group(client)
        assert sorted(await members(first)) == ["one", "three", "two"] == sorted(await members(second))
        await third.ask(35, {"clientID": "three", "consumerGroup": "C"})
        for client in (first, second):
            await pushed_group(client)
        await second.close()
        await pushed_group(first)
        assert await members(first) == ["one"]
        await first.heartbeat("one", consumers={"C": ["T"]})
        await asyncio.sleep(0.05)
        assert first.pushes.empty(), "nothing changed"


async def test_group_without_members_is_code_1(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        assert (await (await running.client()).ask(38, {"consumerGroup": "C"})).code == 1


# --- what comes behind a heartbeat whose groups are being made ----------------------------------------------------


async def test_who_leaves_in_the_write_of_its_first_heartbeat_is_no_member(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client, other = await running.client(), await running.client()
        for number in range(5):
            group = f"C{number}"
            answers = await asyncio.gather(
                client.heartbeat("me", consumers={group: ["T"], f"{group}-2": ["T"]}),
                client.ask(35, {"clientID": "me", "consumerGroup": group}),
            )
            assert [answer.code for answer in answers] == [0, 0]
            assert await members(other, group) == []
            assert await members(other, f"{group}-2") == ["me"]


async def test_what_waits_behind_a_heartbeat_is_little_and_is_counted(tmp_path: Path) -> None:
    """35 and 34 may be as large as a frame, with a body that nobody reads."""
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client = await running.client()
        clients, intake = running.broker._members.members, running.broker._gateway.intake
        asked = asyncio.create_task(client.heartbeat("me", consumers={"C": ["T"]}))
        await until(lambda: hand.flush.asked is not None)
        before = intake.taken
        ext = {"clientID": "me", "consumerGroup": "x" * 100_000}
        client.write(command(35, 4_711, ext, b"x" * 9_000, remark="x" * 9_000))
        client.write(command(34, 4_712, ext, b'{"clientID":"me"}', remark="x" * 9_000))
        await until(lambda: clients.waiting == 2)
        await until(lambda: intake.taken - before >= 400_000)
        for one in clients._waiting[next(iter(clients._waiting))]:
            request = one.failed.args[1]
            assert (request.body, request.remark) == (b"", None)
        hand.flush.run()
        assert (await asked).code == 0
        assert (await asyncio.wait_for(client.expect(4_711), 5)).code == 0


async def test_connection_that_ends_while_its_groups_are_made_leaves_no_member(tmp_path: Path) -> None:
    hand = Hand()
    async with serving(tmp_path, make_syncer=hand, durability=Durability.FSYNC) as running:
        hand.flush.run()
        client, other = await running.client(), await running.client()
        asked = [asyncio.create_task(client.heartbeat("me", consumers={group: ["T"]})) for group in ("C", "D")]
        gateway = running.broker._gateway
        await until(lambda: gateway._backlog() == 2 and hand.flush.asked is not None)
        for one in asked:
            one.cancel()
        await client.close()
        await until(lambda: len(gateway.connections) == 1)
        hand.flush.run()
        await until(lambda: gateway._backlog() == 0)
        assert await members(other, "C") == await members(other, "D") == []
        assert not running.state.session.consumes


async def test_two_connections_that_name_the_same_many_new_groups_are_both_members_of_all(tmp_path: Path) -> None:
    names = [f"C{number}" for number in range(1_000)]
    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        answers = await asyncio.gather(
            one.heartbeat("one", consumers={name: [] for name in names}),
            two.heartbeat("two", consumers={name: [] for name in reversed(names)}),
        )
        assert [answer.code for answer in answers] == [0, 0]
        for name in (names[0], names[500], names[-1]):
            assert sorted(await members(one, name)) == ["one", "two"]


async def lock(client: RawClient, code: int, who: str, queues: list[int]) -> list[int]:
    body = {
        "clientId": who, "consumerGroup": "C", "onlyThisBroker": False,
        "mqSet": [{"brokerName": "halfmq", "queueId": queue, "topic": "T"} for queue in queues],
    }  # fmt: skip
    answer = await client.ask(code, body=json.dumps(body).encode())
    assert answer.code == 0
    return sorted(queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]) if answer.body else []


async def test_queue_is_locked_by_one_client_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        await one.send("T", b"x", queues=3)
        await one.heartbeat("one", consumers={"C": ["T"]})
        assert await lock(one, 41, "one", [0, 1]) == [0, 1]
        assert await lock(two, 41, "two", [1, 2]) == [2]
        assert await lock(one, 41, "one", [1]) == [1], "renewed"
        await lock(one, 42, "one", [1])
        assert await lock(two, 41, "two", [1]) == [1]


def heartbeat_of(
    client_id: str, group: str, topic: str, expression: str, kind: str = "TAG", version: object = 1
) -> bytes:
    item = {"topic": topic, "subString": expression, "expressionType": kind, "subVersion": version}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [item],
    }  # fmt: skip
    return json.dumps({"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}).encode()


async def test_a_language_that_nobody_knows_is_not_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        sent = command(34, 77, {}, heartbeat_of("me", "C", "T", "*"))
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
        asked = asyncio.create_task(client.heartbeat("one", consumers={"C": ["T"]}))
        topic = asyncio.create_task(client.send("T", b"m", queues=4))
        while not (asked.done() and topic.done()):
            hand.flush.run()
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(lock(client, 41, "one", [0]))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        hand.flush.run()
        assert await asyncio.wait_for(waiting, 2) == [0]


@pytest.mark.parametrize("leaves", ["35", "cut off", "drain"])
async def test_who_leaves_is_not_waited_for_after_a_restart_unless_the_broker_cut_it_off(
    tmp_path: Path, leaves: str
) -> None:
    async with serving(tmp_path) as running:
        one, two = await running.client(), await running.client()
        await one.send("T", b"m", queues=4)
        await one.heartbeat("one", consumers={"C": ["T"]})
        assert await lock(one, 41, "one", [0]) == [0]
        if leaves == "35":
            await one.ask(35, {"clientID": "one", "consumerGroup": "C"})
        elif leaves == "cut off":
            await one.close()
        else:
            await running.broker.drain()
        while leaves == "cut off" and running.state.holders:
            await two.ask(38, {"consumerGroup": "C"})
        assert bool(running.state.holders) == (leaves == "drain")
    async with serving(tmp_path) as running:
        two = await running.client()
        await two.send("T", b"m", queues=4)
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
    body = {
        "clientID": "me@1",
        "consumerDataSet": [{
            "groupName": "C", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [
                {"topic": "T", "subString": "a > 5", "tagsSet": [], "codeSet": [], "subVersion": 1, "expressionType": "SQL92"},
                {"topic": "U", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, "expressionType": "TAG"},
            ],
        }],
    }  # fmt: skip
    async with serving(tmp_path) as running:
        client = await running.client()
        for _ in range(3):
            assert (await client.ask(34, {}, json.dumps(body).encode())).code == 0
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
