"""The AsyncAPI document of an app: what is in it, what is not, and that the official schema accepts it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass
from tests.support.asyncapi_schema import accepts, mistakes

from halfmq import App, Message
from halfmq.client.asyncapi import document
from halfmq.client.outgoing import encode_body
from halfmq.errors import InvalidName, UsageError


@dataclass
class Order:
    """An order of the shop."""

    id: int
    place: tuple[int, str] = (1, "a")


class Placed(msgspec.Struct, rename="camel", tag_field="kind", tag="placed"):
    order_id: Annotated[int, msgspec.Meta(gt=0)]


class Cancelled(msgspec.Struct, rename="camel", tag_field="kind", tag="cancelled"):
    order_id: int


class Customer(pydantic.BaseModel):
    customer_id: int = pydantic.Field(alias="customerId", gt=0)
    pair: tuple[int, str] | None = None


@dataclass
class Visit:
    by: Customer


class Unknown:
    pass


def app(url: str = "127.0.0.1:1") -> App:
    return App(url, group="shop")


def made(of: App) -> dict[str, Any]:
    found = document(of, title="shop", version="1.2.0")
    assert mistakes(found) == []
    assert json.loads(json.dumps(found)) == found
    return found


def test_the_official_schema_finds_mistakes() -> None:
    """So that its silence about the documents of the other tests says something."""
    of = app()
    of.publishes("orders", Order)
    for spoil in (
        lambda found: found["info"].pop("version"),
        lambda found: found["operations"]["send-orders"].update(action="sends"),
        lambda found: found["channels"]["orders"]["messages"]["Order"].update(payload={"type": "number of some kind"}),
        lambda found: found["components"]["schemas"].pop("Order"),
    ):
        found = document(of, title="shop", version="1.2.0")
        spoil(found)
        assert len(mistakes(found)) == 1


def test_a_consumer_receives() -> None:
    of = app()

    @of.consumer("orders", group="billing", tags="a || b")
    def bill(order: Order, message: Message) -> None:
        """Bill it.

        At once.
        """

    found = made(of)
    assert found["info"] == {"title": "shop", "version": "1.2.0"}
    assert found["channels"]["orders"] == {
        "address": "orders",
        "messages": {
            "Order": {
                "name": "Order",
                "contentType": "application/json",
                "payload": {"$ref": "#/components/schemas/Order"},
            }
        },
    }
    assert found["operations"] == {
        "bill": {
            "action": "receive",
            "channel": {"$ref": "#/channels/orders"},
            "description": "Bill it.\n\nAt once.",
            "x-consumer-group": "billing",
            "x-subscription-tags": "a || b",
            "messages": [{"$ref": "#/channels/orders/messages/Order"}],
        }
    }
    assert found["components"]["schemas"]["Order"]["description"] == "An order of the shop."


def test_a_consumer_of_several_topics_and_of_a_union_has_an_operation_of_each_topic_and_a_message_of_each_class() -> (
    None
):
    of = app()

    @of.consumer(["orders", "refunds"], group="audit")
    async def note(event: Placed | Cancelled) -> None: ...

    @of.consumer("orders", group="other")
    async def first(event: Placed) -> None: ...

    found = made(of)
    assert found["operations"].keys() == {"note-orders", "note-refunds", "first"}
    assert found["channels"]["orders"]["messages"].keys() == {"Placed", "Cancelled"}
    assert [one["$ref"] for one in found["operations"]["note-refunds"]["messages"]] == [
        "#/channels/refunds/messages/Placed",
        "#/channels/refunds/messages/Cancelled",
    ]
    assert [one["$ref"] for one in found["operations"]["first"]["messages"]] == ["#/channels/orders/messages/Placed"]


def test_functions_of_one_name_and_types_of_one_name_are_kept_apart() -> None:
    of = app()

    def handler(kind: Any) -> Any:
        def handle(order: Any) -> None: ...

        handle.__annotations__["order"] = kind
        return handle

    @pydantic_dataclass
    class Line:
        amount: int

    pydantics = Line

    @dataclass
    class Line:  # type: ignore[no-redef]
        pieces: int

    of.consumer("lines", group="a")(handler(pydantics))
    of.consumer("lines", group="b")(handler(Line))
    found = made(of)
    assert found["operations"].keys() == {"handle", "handle-2"}
    assert found["channels"]["lines"]["messages"].keys() == {"Line", "Line-2"}
    assert [accepts(found, "lines", name, {"amount": 1}) for name in ("Line", "Line-2")] == [True, False]
    assert [accepts(found, "lines", name, {"pieces": 1}) for name in ("Line", "Line-2")] == [False, True]


def test_of_what_is_not_said_nothing_is_written() -> None:
    of = app()

    @of.consumer("orders", group="a")
    def anything(message: Message) -> None: ...

    @of.transaction("order.create")
    def anywhere(tx: Any) -> None: ...

    @of.transaction("order.pay", topic="payments")
    def pay(tx: Any) -> None:
        """Take the money."""

    found = made(of)
    assert found["channels"] == {"orders": {"address": "orders"}, "payments": {"address": "payments"}}
    assert found["operations"] == {
        "anything": {"action": "receive", "channel": {"$ref": "#/channels/orders"}, "x-consumer-group": "a"},
        "pay": {
            "action": "send",
            "channel": {"$ref": "#/channels/payments"},
            "description": "Take the money.",
            "x-transaction": "order.pay",
        },
    }
    assert "components" not in found


def test_what_is_declared_is_sent_by_the_transaction_of_its_topic_or_by_itself() -> None:
    of = app()

    @of.transaction("order.create", topic="orders")
    def create(tx: Any) -> None: ...

    of.publishes("orders", Placed | Cancelled)
    of.publishes("visits", Visit, description="Who came.")
    found = made(of)
    assert found["operations"].keys() == {"create", "send-visits"}
    assert [one["$ref"] for one in found["operations"]["create"]["messages"]] == [
        "#/channels/orders/messages/Placed",
        "#/channels/orders/messages/Cancelled",
    ]
    assert found["operations"]["send-visits"]["description"] == "Who came."
    with pytest.raises(InvalidName):
        of.publishes("no topic", Visit)


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (Order(1), {"id": 1, "place": ["a", 1]}),
        (Order(1), {"id": 1, "place": [1, "a", "b"]}),
        (Placed(1), {"kind": "placed", "orderId": 0}),
        (Placed(1), {"kind": "cancelled", "orderId": 1}),
        (Customer(customerId=1, pair=(1, "a")), {"customerId": 1, "pair": ["a", 1]}),
        (Customer(customerId=1), {"customer_id": 1}),
        (Visit(Customer(customerId=1)), {"by": {"customerId": 0}}),
    ],
)
def test_a_schema_accepts_what_is_sent_and_not_what_is_refused(body: object, wrong: dict[str, Any]) -> None:
    of = app()
    of.publishes("topic", type(body))
    found, name = made(of), type(body).__name__
    assert accepts(found, "topic", name, json.loads(encode_body(body)))
    assert not accepts(found, "topic", name, wrong)


def test_bodies_that_are_no_objects() -> None:
    of = app()
    kinds = (
        ("raw", bytes),
        ("text", str),
        ("lists", list[Order]),
        ("maybe", Order | None),
        ("several", list[Placed | Cancelled]),
    )
    for topic, kind in kinds:
        of.publishes(topic, kind)
    found = made(of)
    messages = {topic: one["messages"][f"{topic}-message"] for topic, one in found["channels"].items()}
    assert messages["raw"] == {"name": "raw-message", "contentType": "application/octet-stream"}
    assert messages["text"]["contentType"] == "text/plain"
    assert accepts(found, "lists", "lists-message", [{"id": 1}])
    assert not accepts(found, "lists", "lists-message", [{"id": "1"}])
    assert accepts(found, "maybe", "maybe-message", None)
    both = [{"kind": "placed", "orderId": 1}, {"kind": "cancelled", "orderId": 1}]
    assert accepts(found, "several", "several-message", both)
    assert not accepts(found, "several", "several-message", [*both, {"kind": "lost", "orderId": 1}])


@pytest.mark.parametrize("kind", [Unknown, list[Unknown]])
def test_a_type_without_a_schema_is_named(kind: Any) -> None:
    of = app()
    of.publishes("topic", kind)
    with pytest.raises(UsageError, match=r"a body has no JSON Schema: .*Unknown"):
        document(of, title="", version="")


def test_a_model_without_a_schema_is_named() -> None:
    class Odd(pydantic.BaseModel, arbitrary_types_allowed=True):
        one: Unknown

    of = app()
    of.publishes("topic", Odd)
    with pytest.raises(UsageError, match=r"a body has no JSON Schema: .*Unknown"):
        document(of, title="", version="")


def test_servers_are_those_of_the_url_and_nothing_that_may_be_secret_is_written(tmp_path: Path) -> None:
    file = tmp_path / "hidden"
    file.write_text("hunter2-hunter2")
    file.chmod(0o600)
    found = made(app(f"rocketmqs://ada@mq1:1;[::1]:2?secretfile={file}"))
    user = [{"$ref": "#/components/securitySchemes/user"}]
    assert found["servers"] == {
        "broker-1": {"host": "mq1:1", "protocol": "rocketmqs", "security": user},
        "broker-2": {"host": "[::1]:2", "protocol": "rocketmqs", "security": user},
    }
    assert found["components"] == {"securitySchemes": {"user": {"type": "userPassword"}}}
    assert not any(hidden in json.dumps(found) for hidden in ("ada", "secretfile", "hidden", "hunter2"))
    assert made(app("mq1:1"))["servers"] == {"broker": {"host": "mq1:1", "protocol": "rocketmq"}}


def test_topics_with_signs_are_referred_to() -> None:
    of = app()
    of.publishes("%RETRY%a|b", Order)  # the signs that names of RocketMQ may have
    found = made(of)
    assert found["operations"]["send-%RETRY%a|b"]["channel"] == {"$ref": "#/channels/%25RETRY%25a%7Cb"}
