"""What a tool asks for is kept and can be read back, or refused by name: every field of every administrative request, over sockets."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.half_batches import QueryRun
from tests.support.in_process import Running, serving
from tests.support.raw_client import Answer, RawClient
from tests.support.worst_requests import derived

from halfmq.broker.remoting.administration import Fixed, Ignored, Kept, Row, Selects
from halfmq.broker.remoting.commands import COMMANDS, fields_of
from halfmq.runtime.disk import RealDisk
from halfmq.store.dump import dump_store
from halfmq.wire.remoting.codes import (
    HMQ_ASK,
    HMQ_ASK_PARKED,
    HMQ_COMPARED,
    HMQ_FORGET_COORDINATOR,
    HMQ_FORGET_DAMAGE,
    HMQ_FORGET_QUERY,
    HMQ_KICK_CLIENT,
    HMQ_PRODUCER,
    HMQ_RESOLVE,
    HMQ_SET_SETTING,
    HMQ_SETTINGS,
    HMQ_STORY,
    HMQ_TAKE_EPOCH,
    RequestCode,
)

ONE = "AC10000100002A9F0000000000000001"
#: Committed, and a database says that it has rolled back.
DAMAGED = "AC10000100002A9F0000000000000002"
ADMINISTRATIVE = {code: command.rules for code, command in COMMANDS.items() if command.rules is not None}


def _who(row: Row) -> dict[str, Any]:
    """Of a command that keeps only who asked for it, and why."""
    return {name: value for name, value in {"operator": "ada", "reason": "ticket 4711"}.items() if name in row.header}


#: Each administrative request as a tool sends it, with nothing unusual: fields of the header, and of the body.
_USUAL: dict[int, tuple[dict[str, str], dict[str, Any]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "3", "perm": "6",
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "", "force": "false"},
        {},
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": "Gone"}, {}),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: ({"topic": "Gone", "clusterName": "DefaultCluster"}, {}),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        {},
        {"groupName": "C", "consumeEnable": True, "consumeFromMinEnable": True, "consumeBroadcastEnable": True,
         "notifyConsumerIdsChangedEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "attributes": {},
         "consumeMessageOrderly": False, "groupRetryPolicy": {"type": "CUSTOMIZED"}, "consumeTimeoutMinute": 15,
         "groupSysFlag": 0, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1, "subscriptionDataSet": None},
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "C", "cleanOffset": "false", "removeOffset": "false"}, {}),
    RequestCode.PUT_KV_CONFIG: ({"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "halfmq:1"}, {}),
    RequestCode.DELETE_KV_CONFIG: ({"namespace": "ORDER_TOPIC_CONFIG", "key": "Gone"}, {}),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (
        {}, {"topic": "orders", "consumerGroup": "C", "mode": "PULL", "popShareQueueNum": 0},
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: ({"consumerGroup": "C", "topic": "orders", "queueId": "0", "commitOffset": "1"}, {}),
    HMQ_RESOLVE: ({"txId": ONE, "group": "P", "verdict": "ROLLBACK", "operator": "bob", "reason": "none"}, {}),
    HMQ_ASK: ({"txId": ONE, "group": "P"}, {}),
    HMQ_ASK_PARKED: ({"group": "P", "max": "10"}, {}),
    HMQ_FORGET_COORDINATOR: ({"group": "P", "coordinator": "c1", "operator": "bob", "reason": "none"}, {}),
    HMQ_FORGET_DAMAGE: ({"txId": DAMAGED, "group": "P", "operator": "bob", "reason": "none"}, {}),
    HMQ_FORGET_QUERY: ({"query": "q1", "queryTopic": "", "operator": "bob", "reason": "none"}, {}),
    HMQ_KICK_CLIENT: ({"clientId": "noisy", "connection": "0", "operator": "bob", "reason": "none"}, {}),
    HMQ_SET_SETTING: (
        {
            "setting": "queries_max", "value": "5", "unset": "false", "operator": "bob", "reason": "none",
            "preview": "false",
        },
        {},
    ),
    HMQ_PRODUCER: (
        {"group": "P", "operator": "bob", "reason": "none"},
        {"check_limit": 7, "past_limit": "rollback", "skip_age_ms": 0, "undecided_max": -1, "undecided_bytes_max": -1},
    ),
}  # fmt: skip
USUAL = {
    code: _USUAL.get(code) or ({**derived(code)[0], "operator": "bob", "reason": "none"}, {}) for code in ADMINISTRATIVE
}
#: A value other than the usual one for each field, and what is shown of it: the value itself where nothing else is said.
_OTHER: dict[int, dict[str, Any]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: {
        "defaultTopic": "orders", "readQueueNums": "7", "writeQueueNums": "2", "perm": "4", "topicFilterType": "MULTI_TAG",
        "topicSysFlag": "1", "order": "true", "attributes": "+message.type=FIFO", "force": "true",
    },
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"clusterName": "other"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {
        "consumeEnable": False, "consumeFromMinEnable": False, "consumeBroadcastEnable": False,
        "notifyConsumerIdsChangedEnable": False, "retryQueueNums": 3, "retryMaxTimes": 5, "attributes": {"+hold.topics": "orders"},
        "consumeMessageOrderly": True, "groupRetryPolicy": {"type": "EXPONENTIAL"}, "consumeTimeoutMinute": 20, "groupSysFlag": 1,
        "brokerId": 1, "whichBrokerWhenConsumeSlowly": 0, "subscriptionDataSet": [{"topic": "orders"}],
    },
    RequestCode.DELETE_SUBSCRIPTIONGROUP: {"cleanOffset": "true", "removeOffset": "true"},
    RequestCode.PUT_KV_CONFIG: {"value": "halfmq:1;"},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {"mode": "POP", "popShareQueueNum": 4},
    RequestCode.UPDATE_CONSUMER_OFFSET: {"commitOffset": "0"},
    HMQ_SET_SETTING: {"value": "7", "unset": "true", "operator": "ada", "reason": "ticket 4711"},
    HMQ_RESOLVE: {"verdict": "COMMIT", "operator": "ada", "reason": "ticket 4711"},
    HMQ_PRODUCER: {
        "operator": "ada", "reason": "ticket 4711", "check_limit": 5, "past_limit": "set-aside", "skip_age_ms": 90_000,
        "undecided_max": 9, "undecided_bytes_max": 1 << 20,
    },
}  # fmt: skip
OTHER = {code: _OTHER.get(code) or _who(row) for code, row in ADMINISTRATIVE.items()}
SHOWN: dict[tuple[int, str], Any] = {
    (RequestCode.UPDATE_AND_CREATE_TOPIC, "readQueueNums"): 7,
    (RequestCode.UPDATE_AND_CREATE_TOPIC, "writeQueueNums"): 2,
    (RequestCode.UPDATE_AND_CREATE_TOPIC, "perm"): 4,
    (RequestCode.UPDATE_AND_CREATE_TOPIC, "order"): True,
    (RequestCode.UPDATE_AND_CREATE_TOPIC, "attributes"): {"message.type": "FIFO"},
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "attributes"): {"hold.topics": "orders", "hold.ms": "604800000"},
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, "cleanOffset"): None,
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, "removeOffset"): None,
    (RequestCode.PUT_KV_CONFIG, "value"): "halfmq:1",
    (HMQ_SET_SETTING, "value"): 7,
}


async def ask(client: RawClient, code: int, /, **changed: Any) -> Answer:
    """The usual request with these fields changed."""
    header, body = (dict(fields) for fields in USUAL[code])
    for name, value in changed.items():
        (header if name in ADMINISTRATIVE[code].header or name not in ADMINISTRATIVE[code].body else body)[name] = value
    return await client.ask(code, header, json.dumps(body).encode() if body else b"")


async def asked_for_body(client: RawClient, code: int, ext: dict[str, str]) -> Any:
    answer = await client.ask(code, ext)
    assert answer.code == 0, answer
    return json.loads(answer.body)


async def topic(client: RawClient, running: Running, field: str) -> Any:
    return (await asked_for_body(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}))[field]


async def group(client: RawClient, running: Running, field: str) -> Any:
    one = await asked_for_body(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "C"})
    of_all = await asked_for_body(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
    assert of_all["subscriptionGroupTable"]["C"] == one
    return one[field]


async def order(client: RawClient, running: Running, field: str) -> str:
    answer = await client.ask(RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"})
    return answer.ext["value"]


async def offset(client: RawClient, running: Running, field: str) -> str | None:
    where = {"consumerGroup": "C", "topic": "orders", "queueId": "0", "setZeroIfNotFound": "false"}
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, where)
    return answer.ext["offset"] if answer.code == 0 else None


async def story(client: RawClient, running: Running, field: str) -> str:
    """Its words for the value that was sent."""
    told = " ".join(await asked_for_body(client, HMQ_STORY, {"txId": ONE}))
    sent: str = OTHER[HMQ_RESOLVE][field]
    words = "COMMITTED" if field == "verdict" else sent
    return sent if words in told else told


async def limits(client: RawClient, running: Running, field: str) -> Any:
    stands = await asked_for_body(client, HMQ_PRODUCER, {"group": "P"})
    return stands["set_by" if field == "operator" else field]


async def setting(client: RawClient, running: Running, field: str) -> Any:
    stands = (await asked_for_body(client, HMQ_SETTINGS, {}))["queries_max"]
    return stands["set_by" if field == "operator" else field]


async def audit(client: RawClient, running: Running, field: str) -> Any:
    lines = [json.loads(line) for line in dump_store(RealDisk(), running.directory)]
    name = "name" if field == "operator" else field
    return [line[name] for line in lines if line["kind"] == "operator_acted"][-1]


async def nothing(client: RawClient, running: Running, field: str) -> Any:
    raise AssertionError("it is refused")


READ_BACK: dict[int | str, Callable[[RawClient, Running, str], Awaitable[Any]]] = {
    RequestCode.GET_TOPIC_CONFIG: topic,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: group,
    RequestCode.GET_KV_CONFIG: order,
    RequestCode.QUERY_CONSUMER_OFFSET: offset,
    RequestCode.QUERY_ASSIGNMENT: nothing,
    HMQ_STORY: story,
    HMQ_PRODUCER: limits,
    HMQ_SETTINGS: setting,
    "halfmq store dump --kind operator_acted": audit,
}


async def prepared(running: Running) -> RawClient:
    """A topic with a message, a group with an offset in it, and an undecided transaction whose producer is there, and a query that has
    decided.
    """
    client = await running.client()
    await client.heartbeat("me", producers=["P"])
    await (await running.client()).heartbeat("noisy", producers=["P"])
    await client.half("orders", b"one", unique=ONE)
    await client.send("orders", b"two")
    half = await client.half("orders", b"three", unique=DAMAGED)
    assert (await client.end(half, DAMAGED, 8)).code == 0
    report = {"group": "P", "txId": DAMAGED, "outcome": "ROLLBACK", "source": "bank"}
    assert (await client.ask(HMQ_COMPARED, report)).code == 0
    assert (await client.ask(200, body=b'{"groupName":"C"}')).code == 0
    assert (await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET)).code == 0
    assert (await (await QueryRun.begin(client)).decide(0)).code == 0
    assert (await client.ask(HMQ_TAKE_EPOCH, {"group": "P", "coordinator": "c1", "takenBy": "me"})).code == 0
    return client


FIELDS = [
    (code, name, rule) for code, row in ADMINISTRATIVE.items() for name, rule in {**row.header, **row.body}.items()
]


@pytest.mark.parametrize(
    ("code", "name", "rule"), FIELDS, ids=lambda part: str(part) if not isinstance(part, tuple) else ""
)
async def test_every_field_is_read_back_or_refused_by_name(tmp_path: Path, code: int, name: str, rule: Any) -> None:
    if isinstance(rule, Selects):
        assert name in USUAL[code][0] or name in USUAL[code][1]
        return
    value = OTHER[code][name]
    async with serving(tmp_path) as running:
        client = await prepared(running)
        before = running.log_bytes()
        answer = await ask(client, code, **{name: value})
        if isinstance(rule, Fixed) or answer.code != 0:
            assert (answer.code != 0, name in str(answer.remark)) == (True, True), answer
            assert running.log_bytes() == before, "nothing was changed"
            assert (await ask(client, code)).code == 0, "the usual value is what holds"
        elif isinstance(rule, Kept):
            shown = SHOWN.get((code, name), value)
            assert await READ_BACK[rule.shown_by](client, running, name) == shown
        else:
            assert isinstance(rule, Ignored)
    if isinstance(rule, Kept) and answer.code == 0 and rule.shown_by != "halfmq store dump --kind operator_acted":
        async with serving(tmp_path) as running:
            assert await READ_BACK[rule.shown_by](await running.client(), running, name) == shown, "and after a restart"


@pytest.mark.parametrize("code", [code for code in ADMINISTRATIVE if code != RequestCode.UPDATE_CONSUMER_OFFSET])
async def test_a_field_without_a_rule_is_refused_by_name_unless_it_says_nothing(tmp_path: Path, code: int) -> None:
    """As a later version of a tool sends it, in the header or in the body; and credentials are no such field."""
    async with serving(tmp_path) as running:
        client = await prepared(running)
        before, (header, body) = running.log_bytes(), USUAL[code]
        as_body = json.dumps(body).encode() if body else b""
        refused = [await client.ask(code, {**header, "newThing": "5"}, as_body)]
        if body:
            refused.append(await client.ask(code, header, json.dumps({**body, "newThing": 5}).encode()))
        else:
            assert (await client.ask(code, header, b"{}")).code == 1, "a body without a meaning"
        for answer in refused:
            assert (answer.code, "'newThing'" in str(answer.remark)) == (1, True), answer
        assert running.log_bytes() == before
        nothing_new = {"newThing": False, "other": None, "more": []} if code < 29_000 else {}
        as_body = json.dumps({**body, **nothing_new}).encode() if body else b""
        answer = await client.ask(code, {**header, "newThing": "false", "AccessKey": "me", "Signature": "x"}, as_body)
        # HMQ_ASK: the grace period of the transaction has not passed, so the request was understood.
        assert (answer.code, "newThing" in str(answer.remark)) == (2 if code == HMQ_ASK else 0, False)


def test_every_field_of_an_administrative_command_has_a_rule() -> None:
    """A new command for operators fails here until it is said what it keeps; and a new field of one that has no rule."""
    for code, row in ADMINISTRATIVE.items():
        kind = fields_of(code)
        if kind is not None:
            kept = {name for name, rule in (row.header or row.body).items() if isinstance(rule, Selects | Kept)}
            assert set(kind.__struct_encode_fields__) == kept, code
    for code, row in ADMINISTRATIVE.items():
        others = {name for name, rule in {**row.header, **row.body}.items() if not isinstance(rule, Selects)}
        assert set(OTHER.get(code, {})) == others, code


@pytest.mark.parametrize("empty", [None, [], {}, ""])
async def test_an_empty_field_of_a_tool_says_nothing(tmp_path: Path, empty: Any) -> None:
    async with serving(tmp_path) as running:
        client = await prepared(running)
        for name, rule in ADMINISTRATIVE[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP].body.items():
            if isinstance(rule, Fixed):
                assert (
                    await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, **{name: empty})
                ).code == 0, name


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("+bogus.attr=1", "unsupported key: 'bogus.attr'"),
        ("-bogus.attr", "unsupported key: 'bogus.attr'"),
        ("+queue.type=BatchCQ", "queue.type"),
        ("+message.type=LITE", "message.type is 'LITE'"),
        ("+message.type=FIFO,-message.type", "duplication"),
        ("+message.type", "message.type is ''"),
    ],
)
async def test_attributes_of_a_topic_that_are_not_kept_are_refused_and_the_topic_is_not_made(
    tmp_path: Path, attributes: str, named: str
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        refused = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, attributes=attributes)
        assert (refused.code, named in str(refused.remark)) == (1, True), refused
        assert (await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})).code == 17


async def test_the_type_of_messages_stays_when_a_change_does_not_name_it_and_goes_when_it_is_removed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        for attributes, shown in (
            ("+message.type=TRANSACTION", {"message.type": "TRANSACTION"}),
            ("", {"message.type": "TRANSACTION"}),
            ("message.type=NORMAL", {"message.type": "NORMAL"}),
            ("-message.type", {}),
            ("-message.type", {}),
        ):
            assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, attributes=attributes)).code == 0
            assert await topic(client, running, "attributes") == shown


async def test_a_group_that_does_not_exist_has_no_settings(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        answer = await (await running.client()).ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "Nowhere"})
        assert (answer.code, "Nowhere" in str(answer.remark)) == (26, True)


async def test_a_group_without_broadcasting_refuses_it_and_serves_others(tmp_path: Path) -> None:
    """RocketMQ's tools switch it off in every group that they make or change, unless told otherwise."""
    async with serving(tmp_path) as running:
        client = await prepared(running)
        for enabled, model, code in ((False, "BROADCASTING", 16), (False, "CLUSTERING", 0), (True, "BROADCASTING", 0)):
            assert (await ask(client, 200, consumeBroadcastEnable=enabled)).code == 0
            body = {
                "clientID": "me", "producerDataSet": [],
                "consumerDataSet": [{
                    "groupName": "C", "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 1}],
                }],
            }  # fmt: skip
            assert (await client.ask(34, {}, json.dumps(body).encode())).code == 0
            pull = {
                "consumerGroup": "C", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1",
            }  # fmt: skip
            answer = await client.ask(11, pull)
            assert answer.code == code, (enabled, model, answer.remark)


async def test_a_group_that_wants_no_notifications_gets_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client, second = await prepared(running), await running.client()
        assert (await ask(client, 200, notifyConsumerIdsChangedEnable=False)).code == 0
        await client.heartbeat("me", consumers={"C": ["orders"], "D": ["orders"]})
        await second.heartbeat("you", consumers={"C": ["orders"]})
        await second.heartbeat("you", consumers={"D": ["orders"]})
        told = [await client.pushes.get() for _ in range(2)]
        assert [push.ext["consumerGroup"] for push in told] == ["D", "D"], "its own coming, and that of the other"
