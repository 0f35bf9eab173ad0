"""Bodies, properties and delays of outgoing messages: refused at the call, or encoded as RocketMQ expects."""

from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from halfmq import limits
from halfmq.client.outgoing import compose, delay_properties, encode_body
from halfmq.errors import InvalidName, MessageTooLarge, UsageError
from halfmq.model import properties


@dataclass
class Order:
    id: int


class Event(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    ("body", "encoded"),
    [
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("žluťoučký", "žluťoučký".encode()),
        ({"id": 7}, b'{"id":7}'),
        ([1, 2], b"[1,2]"),
        (Order(7), b'{"id":7}'),
        (Event("made"), b'{"name":"made"}'),
        (7, b"7"),
    ],
)
def test_body_becomes_bytes(body: object, encoded: bytes) -> None:
    assert encode_body(body) == encoded


@pytest.mark.parametrize("body", [None, b"", "", object(), {1, object()}])
def test_body_without_a_form_is_refused(body: object) -> None:
    with pytest.raises(UsageError):
        encode_body(body)


def test_body_over_the_limit_is_refused_and_at_the_limit_taken() -> None:
    assert len(encode_body(b"x" * limits.BODY_BYTES_MAX)) == limits.BODY_BYTES_MAX
    with pytest.raises(MessageTooLarge):
        encode_body(b"x" * (limits.BODY_BYTES_MAX + 1))


def test_tag_keys_sharding_key_and_own_properties_travel() -> None:
    message = compose("t", b"x", tag="web", key=7, keys=["a", 8], sharding_key=42, properties={"mine": "yes"})
    assert properties.to_dict(message.properties) == {
        "TAGS": "web",
        "KEYS": "7 a 8",
        "__SHARDINGKEY": "42",
        "mine": "yes",
    }
    assert message.sharding_key == "42"


def test_one_text_as_keys_is_one_key() -> None:
    assert properties.to_dict(compose("t", b"x", keys="abc").properties) == {"KEYS": "abc"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"tag": "a||b"},
        {"tag": " a"},
        {"tag": ""},
        {"key": "two words"},
        {"key": ""},
        {"keys": ""},
        {"keys": ["fine", ""]},
        {"sharding_key": ""},
        {"sharding_key": b"7"},
        {"properties": {"UNIQ_KEY": "mine"}},
        {"properties": {"HMQ_TX_ID": "mine"}},
        {"properties": {"a": ""}},
        {"properties": {"a": 7}},
        {"properties": {"a\x01b": "c"}},
        {"properties": {"a": "b\x02c"}},
        {"delay": -1},
        {"delay": 4 * 86_400},
    ],
)
def test_what_would_not_survive_the_wire_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        compose("t", b"x", **arguments)  # type: ignore[arg-type]


def test_properties_that_leave_no_room_for_ours_are_refused() -> None:
    with pytest.raises(MessageTooLarge):
        compose("t", b"x", properties={"a": "x" * (limits.PROPERTIES_BYTES_MAX - 1_000)})


@pytest.mark.parametrize("topic", ["", "with space", "a/b", "x" * 128])
def test_topic_must_be_a_name(topic: str) -> None:
    with pytest.raises(InvalidName):
        compose(topic, b"x")


def test_delay_in_seconds_or_timedelta() -> None:
    assert compose("t", b"x", delay=1.5).delay_ms == 1_500
    assert compose("t", b"x", delay=timedelta(minutes=2)).delay_ms == 120_000


@pytest.mark.parametrize(
    ("delay_ms", "expected"),
    [
        (0, {}),
        (1_000, {"DELAY": "1"}),
        (3_600_000, {"DELAY": "17"}),
        (7_000, {"TIMER_DELAY_SEC": "7"}),
        (1_500, {"TIMER_DELAY_MS": "1500"}),
    ],
)
def test_delay_prefers_a_level_that_every_broker_knows(delay_ms: int, expected: dict[str, str]) -> None:
    assert properties.to_dict(delay_properties(delay_ms, any_delay=True)) == expected


def test_broker_that_knows_only_levels_refuses_other_delays() -> None:
    assert properties.to_dict(delay_properties(5_000, any_delay=False)) == {"DELAY": "2"}
    with pytest.raises(UsageError, match="1, 5, 10"):
        delay_properties(7_000, any_delay=False)
