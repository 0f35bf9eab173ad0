"""From a send's header and property string to a command, without a broker."""

from typing import Any

import pytest
from tests.support.steps import result_of

from halfmq import limits
from halfmq.broker.services.send_commands import batch_command, send_command
from halfmq.core.commands import BatchEntry, SendBatch, SendHalf, SendMessage
from halfmq.core.decision import Refused, Why
from halfmq.model.ids import hash64, java_string_hash
from halfmq.model.message_facts import user_of
from halfmq.model.properties import encode, to_dict
from halfmq.wire.remoting.fields import SendFields

PEER = b"\x0a\x00\x00\x07\x00\x00\x30\x39"


def fields(pairs: dict[str, str], **changes: Any) -> SendFields:
    values: dict[str, Any] = {
        "group": "SENDER", "topic": "orders", "default_queues": 8, "queue_id": 2, "sys_flag": 0, "born_time_ms": 77, "flag": 5,
        "properties": encode(pairs).decode(), **changes,
    }  # fmt: skip
    return SendFields(**values)


def sent(pairs: dict[str, str], **changes: Any) -> Any:
    return send_command(9, PEER, fields(pairs, **changes), b"body")


def test_a_plain_message_has_in_fields_what_its_properties_say() -> None:
    command = sent({"UNIQ_KEY": "M1", "TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "3"}, max_reconsume_times=16)
    assert command == SendMessage(
        9, "SENDER", "orders", 8, 2, 0, 77, 5, command.properties, 0, 16, b"body", PEER, False, "M1",
        java_string_hash("TagA"), hash64(b"M1"), b"k1 k2", 10_000,
    )  # fmt: skip
    assert to_dict(command.properties) == {"UNIQ_KEY": "M1", "TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "3"}
    assert sent({}).unique_id == "", "the broker finds one"


def test_a_half_names_its_group_and_its_transaction() -> None:
    command = sent({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "T1", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9"})
    assert isinstance(command, SendHalf)
    assert (command.connection, command.group, command.tx_id, command.index, command.count) == (9, "PG", "T1", 0, 1)
    assert (command.grace_ms, command.id_hash) == (9_000, command.key_hash)
    several = {
        "TRAN_MSG": "TRUE",
        "PGROUP": "PG",
        "UNIQ_KEY": "U",
        "HMQ_TX_ID": "T9",
        "HMQ_TX_INDEX": "2",
        "HMQ_TX_COUNT": "3",
    }
    part = sent(several)
    assert (part.tx_id, part.index, part.count, part.unique_id) == ("T9", 2, 3, "U")
    assert (part.id_hash, part.key_hash) == (hash64(b"T9"), hash64(b"U"))


_EVIL: dict[str, str] = {"UNIQ_KEY": "T1", "HMQ_USER": "root", "TAGS": "TagA"}


@pytest.mark.parametrize("user", ["", "shop"])
def test_a_half_has_the_user_who_sent_it_and_never_one_that_the_client_names(user: str) -> None:
    command = send_command(9, PEER, fields({**_EVIL, "TRAN_MSG": "true", "PGROUP": "PG"}), b"body", user)
    assert isinstance(command, SendHalf)
    said = {"HMQ_USER": user} if user else {}
    assert command.user == user
    assert to_dict(command.properties) == {"UNIQ_KEY": "T1", "TAGS": "TagA", "TRAN_MSG": "true", "PGROUP": "PG", **said}
    assert (command.tx_id, command.tag_hash, user_of(command.properties)) == ("T1", java_string_hash("TagA"), user)


@pytest.mark.parametrize(
    "properties",
    [
        "HMQ_USER\x01root\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01T1",
        "TRAN_MSG\x01true\x02HMQ_USER\x01root\x02UNIQ_KEY\x01T1\x02HMQ_USER\x01root\x02HMQ_USER\x01\x02",
        "TRAN_MSG\x01true\x02UNIQ_KEY\x01T1\x02HMQ_USER\x01root",
    ],
)
def test_no_form_of_a_property_string_names_another_user(properties: str) -> None:
    for user in ("", "shop"):
        command = send_command(9, PEER, fields({}, properties=properties), b"body", user)
        assert isinstance(command, SendHalf)
        assert b"root" not in command.properties
        assert user_of(command.properties) == user
        assert to_dict(command.properties).get("HMQ_USER", "") == user


def test_a_plain_message_names_no_user() -> None:
    command = send_command(9, PEER, fields({**_EVIL, "DELAY": "3"}), b"body", "shop")
    assert isinstance(command, SendMessage)
    assert to_dict(command.properties) == {"UNIQ_KEY": "T1", "TAGS": "TagA", "DELAY": "3"}
    retry = send_command(9, PEER, fields({**_EVIL, "TRAN_MSG": "true"}, reconsume_times=1), b"body", "shop")
    assert isinstance(retry, SendMessage)
    assert "HMQ_USER" not in to_dict(retry.properties)
    batch = result_of(
        batch_command(9, PEER, fields({}), [(3, b"one", encode(_EVIL)), (0, b"two", encode({"UNIQ_KEY": "T2"}))])
    )
    assert isinstance(batch, SendBatch)
    assert [to_dict(one.properties) for one in batch.entries] == [
        {"UNIQ_KEY": "T1", "TAGS": "TagA"},
        {"UNIQ_KEY": "T2"},
    ]


def test_a_half_without_a_group_is_of_its_sender_and_says_so_where_redo_reads_it() -> None:
    command = sent({"TRAN_MSG": "true", "UNIQ_KEY": "T1"})
    assert command.group == "SENDER"
    assert to_dict(command.properties)["PGROUP"] == "SENDER"
    assert sent({"TRAN_MSG": "true"}).tx_id == "", "the broker finds one"


@pytest.mark.parametrize("changes", [{"reconsume_times": 1}, {"topic": "%RETRY%CG"}, {"topic": "%DLQ%CG"}])
def test_a_copy_of_a_half_is_a_plain_message(changes: dict[str, Any]) -> None:
    assert isinstance(sent({"TRAN_MSG": "true", "UNIQ_KEY": "T1"}, sys_flag=4, **changes), SendMessage)


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ({"PGROUP": "no spaces"}, Why.INVALID_PARAMETER),
        ({"HMQ_TX_ID": "T", "HMQ_TX_INDEX": "-1"}, Why.INVALID_PARAMETER),
        ({"HMQ_TX_ID": "T"}, Why.INVALID_PARAMETER),
        ({"HMQ_TX_ID": "T", "HMQ_TX_INDEX": "3", "HMQ_TX_COUNT": "3"}, Why.INVALID_PARAMETER),
        ({"HMQ_TX_ID": "T", "HMQ_TX_INDEX": "0", "HMQ_TX_COUNT": "99999999"}, Why.INVALID_PARAMETER),
    ],
)
def test_a_half_that_contradicts_itself_is_refused_before_anything_is_decided(pairs: dict[str, str], why: Why) -> None:
    refused = sent({"TRAN_MSG": "true", "UNIQ_KEY": "T1", **pairs})
    assert isinstance(refused, Refused)
    assert refused.why is why


def test_the_prepared_bit_without_the_property_is_refused() -> None:
    refused = sent({"UNIQ_KEY": "M1"}, sys_flag=4)
    assert isinstance(refused, Refused)
    assert "TRAN_MSG" in refused.text
    assert isinstance(sent({"UNIQ_KEY": "T1", "TRAN_MSG": "true"}, sys_flag=4), SendHalf)


def test_what_the_broker_added_to_a_stored_half_is_taken_off_its_copy() -> None:
    pairs = {
        "TRAN_MSG": "true",
        "PGROUP": "PG",
        "UNIQ_KEY": "T1",
        "CLUSTER": "c",
        "MSG_REGION": "r",
        "TRACE_ON": "true",
    }
    assert to_dict(sent(pairs).properties) == {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "T1"}


def batch(*pairs: dict[str, str], **changes: Any) -> Any:
    return result_of(batch_command(9, PEER, fields({}, **changes), [(3, b"one", encode(one)) for one in pairs]))


def test_a_batch_has_the_same_fields_for_each_message() -> None:
    command = batch({"UNIQ_KEY": "A", "TAGS": "t"}, {})
    assert isinstance(command, SendBatch)
    first, second = command.entries
    assert first == BatchEntry(
        3, b"one", encode({"UNIQ_KEY": "A", "TAGS": "t"}), "A", java_string_hash("t"), hash64(b"A"), b""
    )
    assert (second.unique_id, second.key_hash) == ("", 0)


def test_a_batch_holds_neither_halves_nor_delayed_messages_nor_what_is_no_text() -> None:
    for refused in (batch({"TRAN_MSG": "true"}), batch({"DELAY": "1"}), batch({}, sys_flag=4)):
        assert isinstance(refused, Refused)
        assert refused.why is Why.MESSAGE_ILLEGAL
    broken = batch_command(9, PEER, fields({}), [(0, b"one", b"UNIQ_KEY\x01\xff\x02")])
    assert isinstance(result_of(broken), Refused)


@pytest.mark.parametrize(("count", "keys", "accepted"), [
    (limits.BATCH_MESSAGES_MAX, 1, True), (limits.BATCH_MESSAGES_MAX + 1, 1, False),
    (limits.REQUEST_KEYS_MAX // 8, 8, True), (limits.REQUEST_KEYS_MAX // 8, 9, False),
])  # fmt: skip
def test_a_batch_has_so_many_messages_and_keys(count: int, keys: int, accepted: bool) -> None:
    text = encode({"KEYS": " ".join("k" * keys)})
    command = result_of(batch_command(9, PEER, fields({}), [(0, b"", text)] * count))
    assert isinstance(command, SendBatch) == accepted
    assert accepted or command.why is Why.MESSAGE_ILLEGAL  # type: ignore[union-attr]
