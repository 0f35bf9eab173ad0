"""CloudEvents as messages: what is on the wire in both modes, what is read again, and what other libraries read and write."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as TheirEvent
from tests.unit.client.test_message import message

from halfmq.client.message import Message
from halfmq.client.outgoing import OutgoingMessage
from halfmq.cloudevents import CloudEvent, NotACloudEvent, compose_event, from_message, inbox_key
from halfmq.errors import UsageError
from halfmq.model import properties

AT = datetime(2026, 11, 29, 4, 5, 6, 700_000, tzinfo=UTC)


@dataclass
class Order:
    id: int


FULL = CloudEvent(
    id="A-1", source="/shop/orders", type="order.created", subject="7", time=AT, dataschema="https://shop.example/order",
    extensions={"partitionkey": "7", "traceid": "t"}, data=Order(7),
)  # fmt: skip
LEAST = CloudEvent(id="1", source="/s", type="t")


def arrived(sent: OutgoingMessage) -> Message:
    return message(sent.body, **properties.to_dict(sent.properties))


def test_the_properties_of_binary_mode() -> None:
    """As the writer of the Java SDK names them."""
    sent = compose_event("orders", FULL, tag="web")
    assert properties.to_dict(sent.properties) == {
        "TAGS": "web",
        "KEYS": "A-1",
        "__SHARDINGKEY": "7",
        "CE_specversion": "1.0",
        "CE_id": "A-1",
        "CE_source": "/shop/orders",
        "CE_type": "order.created",
        "CE_subject": "7",
        "CE_time": "2026-11-29T04:05:06.700000Z",
        "CE_contenttype": "application/json",
        "CE_dataschema": "https://shop.example/order",
        "CE_partitionkey": "7",
        "CE_traceid": "t",
    }
    assert (sent.topic, sent.body, sent.sharding_key) == ("orders", b'{"id":7}', "7")
    assert compose_event("orders", LEAST).body == b"\0", "a message must have a body"


def test_the_body_of_structured_mode() -> None:
    sent = compose_event("orders", FULL, structured=True)
    assert properties.to_dict(sent.properties) == {
        "KEYS": "A-1",
        "__SHARDINGKEY": "7",
        "CE_contenttype": "application/cloudevents+json",
    }
    assert json.loads(sent.body) == {
        "specversion": "1.0", "id": "A-1", "source": "/shop/orders", "type": "order.created", "subject": "7",
        "time": "2026-11-29T04:05:06.700000Z", "datacontenttype": "application/json", "dataschema": "https://shop.example/order",
        "partitionkey": "7", "traceid": "t", "data": {"id": 7},
    }  # fmt: skip


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize(
    ("given", "content_type", "data"),
    [
        (Order(7), "application/json", b'{"id":7}'),
        ([1, None], "application/json", b"[1,null]"),
        ("ü", "text/plain", "ü".encode()),
        (b"\xff\0", None, b"\xff\0"),
        (None, None, None),
        (b"", None, None),
    ],
)
def test_what_is_sent_is_read_again(structured: bool, given: object, content_type: str | None, data: bytes) -> None:
    event = CloudEvent(id="1", source="/s", type="t", time=AT, extensions={"a1": "x"}, data=given)
    read = from_message(arrived(compose_event("topic", event, structured=structured)))
    assert read == CloudEvent(
        id="1", source="/s", type="t", time=AT, extensions={"a1": "x"}, data=data, datacontenttype=content_type
    )


@pytest.mark.parametrize(
    ("content_type", "data", "member"),
    [
        ("application/vnd.shop+json; charset=utf-8", b"[1]", {"data": [1]}),
        ("text/xml", b"<a/>", {"data": "<a/>"}),
        ("text/plain; charset=latin-1", b"\xfc", {"data_base64": "/A=="}),
        ("application/x-jsonlike", b"{}", {"data_base64": "e30="}),
        ("image/png", b"\0", {"data_base64": "AA=="}),
    ],
)
def test_the_content_type_says_how_bytes_are_structured(content_type: str, data: bytes, member: dict[str, Any]) -> None:
    event = CloudEvent(id="1", source="/s", type="t", datacontenttype=content_type, data=data)
    sent = compose_event("topic", event, structured=True)
    assert {
        name: value for name, value in json.loads(sent.body).items() if name.startswith("data_") or name == "data"
    } == member
    assert from_message(arrived(sent)) == event


@pytest.mark.parametrize("given", ["text", 7, None, {"id": 7}])
def test_structured_data_without_a_content_type_is_json(given: object) -> None:
    body = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": given}).encode()
    event = from_message(message(body, CE_contenttype="application/cloudevents+json"))
    assert event.datacontenttype == "application/json"
    assert json.loads(event.decode(bytes)) == given


def test_data_is_decoded_as_a_body() -> None:
    read = from_message(arrived(compose_event("orders", FULL)))
    assert read.decode(Order) == Order(7)
    assert read.decode(bytes) == b'{"id":7}'
    assert read.decode(str) == '{"id":7}'
    with pytest.raises(UsageError, match="no data"):
        LEAST.decode(Order)


def test_extensions_are_text_in_binary_mode() -> None:
    event = CloudEvent(id="1", source="/s", type="t", extensions={"yes": True, "no": False, "count": 3})
    assert from_message(arrived(compose_event("t", event))).extensions == {"yes": "true", "no": "false", "count": "3"}
    assert from_message(arrived(compose_event("t", event, structured=True))).extensions == event.extensions


def test_an_id_with_a_space_is_no_key() -> None:
    event = CloudEvent(id="a b", source="/s", type="t")
    sent = compose_event("t", event)
    assert "KEYS" not in properties.to_dict(sent.properties)
    assert from_message(arrived(sent)) == event


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "'id' of an event is empty"),
        ({"id": 7}, "'id' of an event is of type int"),
        ({"source": "a b"}, "has a space"),
        ({"type": "a\nb"}, "'type' of an event has a control character"),
        ({"time": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the mistake
        ({"time": "2026"}, "is no datetime"),
        ({"extensions": {"Trace": "t"}}, "named 'Trace'"),
        ({"extensions": {"subject": "t"}}, "'subject' is no extension"),
        ({"extensions": {"data": "t"}}, "'data' is no extension"),
        ({"extensions": {"ratio": 0.5}}, "'ratio' of an event is of type float"),
        ({"extensions": {"big": 2**31}}, "'big' of an event does not fit in 32 bits"),
    ],
)
def test_attributes_that_no_event_has_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CloudEvent(**{"id": "1", "source": "/s", "type": "t"} | change)


def test_a_partition_key_that_keeps_no_order_is_refused() -> None:
    event = CloudEvent(id="1", source="/s", type="t", extensions={"partitionkey": ""})
    with pytest.raises(UsageError, match="sharding_key '' is empty"):
        compose_event("t", event, structured=True)


def test_data_that_a_mode_cannot_say_is_refused() -> None:
    zero = CloudEvent(id="1", source="/s", type="t", data=b"\0")
    with pytest.raises(UsageError, match="one byte 0"):
        compose_event("t", zero)
    assert from_message(arrived(compose_event("t", zero, structured=True))) == zero
    for strange in (
        CloudEvent(id="1", source="/s", type="t", data=b"x", extensions={"contenttype": "text/plain"}),
        CloudEvent(id="1", source="/s", type="t", data=b"{}", datacontenttype="Application/CloudEvents+json"),
    ):
        with pytest.raises(UsageError, match=r"in binary mode|structured mode"):
            compose_event("t", strange)
        assert from_message(arrived(compose_event("t", strange, structured=True))).id == "1"
    with pytest.raises(UsageError, match="no JSON"):
        compose_event(
            "t", CloudEvent(id="1", source="/s", type="t", data=b"{", datacontenttype="text/json"), structured=True
        )
    with pytest.raises(UsageError, match="CE_empty"):
        compose_event("t", CloudEvent(id="1", source="/s", type="t", extensions={"empty": ""}))


@pytest.mark.parametrize(
    ("body", "pairs", "said"),
    [
        (b"{}", {}, "no specversion"),
        (b"{}", {"CE_specversion": "0.3"}, "specversion '0.3' is not 1.0"),
        (b"{}", {"CE_specversion": "1.0", "CE_id": "1"}, "'source' and 'type'"),
        (b"{}", {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "/s", "CE_type": "t", "CE_time": "noon"}, "RFC3339"),
        (b"{}", {"CE_specversion": "1.0", "CE_id": "1", "CE_source": "/s", "CE_type": "t", "CE_Big": "x"}, "named 'Big'"),
        (b"{", {"CE_contenttype": "application/cloudevents+json"}, "truncated"),
        (b"[]", {"CE_contenttype": "application/cloudevents+json"}, "Expected `object`"),
        (b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"!"}', {"CE_contenttype": "application/cloudevents+json"}, "base64"),
        (b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"","data":1}', {"CE_contenttype": "application/cloudevents+json"}, "data and data_base64"),
        (b"{}", {"CE_contenttype": "application/cloudevents+avro"}, "format 'application/cloudevents.avro', which is not supported"),
        (b"[]", {"CE_contenttype": "application/cloudevents-batch+json"}, "not supported"),
    ],
)  # fmt: skip
def test_a_message_that_is_no_event_is_named(body: bytes, pairs: dict[str, str], said: str) -> None:
    with pytest.raises(NotACloudEvent, match=said) as raised:
        from_message(message(body, UNIQ_KEY="M-1", **pairs))
    assert "M-1" in str(raised.value) or "specversion" in str(raised.value)


def test_the_key_of_an_inbox_is_source_and_id_in_both_modes() -> None:
    twice = {inbox_key(arrived(compose_event("t", FULL, structured=structured))) for structured in (False, True)}
    assert twice == {"/shop/orders A-1"}
    long = CloudEvent(id="1" * 300, source="/s", type="t")
    key = inbox_key(arrived(compose_event("t", long)))
    assert key.startswith("sha256:")
    assert len(key) == 71
    other = CloudEvent(id="1" * 299 + "2", source="/s", type="t")
    assert inbox_key(arrived(compose_event("t", other))) != key


# --- beside the SDK of CloudEvents --------------------------------------------------------------------------------------


def theirs(data: Any) -> TheirEvent:
    return TheirEvent(
        {
            "id": "A-1", "source": "/shop/orders", "type": "order.created", "subject": "7", "time": AT, "traceid": "t",
            "datacontenttype": "application/json" if isinstance(data, dict) else "image/png",
        },
        data,
    )  # fmt: skip


@pytest.mark.parametrize("data", [{"id": 7}, b"\x89PNG"])
def test_their_structured_event_is_read_and_ours_by_them(data: Any) -> None:
    written = JSONFormat().write(theirs(data))
    event = from_message(message(written, CE_contenttype="application/cloudevents+json; charset=UTF-8"))
    assert event.attributes() == theirs(data).get_attributes()
    assert event.decode(bytes) == (data if isinstance(data, bytes) else b'{"id":7}')
    read = JSONFormat().read(None, compose_event("t", event, structured=True).body)
    assert read.get_attributes() == theirs(data).get_attributes()
    assert read.get_data() == data


def test_their_headers_of_kafka_are_our_properties() -> None:
    """They have no binding for RocketMQ; that of Kafka has other names for the same text."""
    sent = kafka.to_binary(theirs({"id": 7}), JSONFormat())
    renamed = {
        "CE_contenttype" if name == "content-type" else f"CE_{name.removeprefix('ce_')}": value.decode()
        for name, value in sent.headers.items()
    }
    event = from_message(message(sent.value, **renamed))
    assert event.attributes() == theirs({"id": 7}).get_attributes()
    ours = properties.to_dict(compose_event("t", event).properties)
    assert {name: value for name, value in ours.items() if name.startswith("CE_")} == renamed
    assert compose_event("t", event).body == sent.value
