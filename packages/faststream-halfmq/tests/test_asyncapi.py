"""The AsyncAPI document that FastStream makes of an application: what is said about a broker, its subscribers and its publishers."""

from typing import Any

import pytest
from faststream import FastStream
from faststream.specification import AsyncAPI
from pydantic import BaseModel

from faststream_halfmq import HalfmqBroker, HalfmqRouter


class Order(BaseModel):
    id: int


class Invoice(BaseModel):
    of: int


def document(version: str) -> dict[str, Any]:
    broker = HalfmqBroker("rocketmqs://app@a:9876;b:9876", secret="hidden", group="shop", description="of the shop")
    router = HalfmqRouter(prefix="eu-")

    @router.subscriber("orders", group="billing")
    @router.publisher("invoices", description="one for each order")
    async def bill(order: Order) -> Invoice:
        """Bills an order."""
        return Invoice(of=order.id)

    @broker.subscriber("secrets", include_in_schema=False)
    async def hide(body: str) -> None: ...

    broker.publisher("orders", schema=Order, title="Orders")
    broker.include_router(router)
    return AsyncAPI(broker, title="shop", version="1", schema_version=version).to_specification().to_jsonable()


def test_the_document_of_version_3_says_where_what_is_received_and_sent() -> None:
    found = document("3.0.0")
    assert [(one["host"], one["protocol"], one["description"]) for one in found["servers"].values()] == [
        ("a:9876", "rocketmqs", "of the shop"),
        ("b:9876", "rocketmqs", "of the shop"),
    ]
    channels = {name: channel["address"] for name, channel in found["channels"].items()}
    assert channels == {"eu-orders:Bill": "eu-orders", "eu-invoices:Publisher": "eu-invoices", "Orders": "orders"}
    actions = {operation["channel"]["$ref"]: operation["action"] for operation in found["operations"].values()}
    assert actions == {
        "#/channels/eu-orders:Bill": "receive",
        "#/channels/eu-invoices:Publisher": "send",
        "#/channels/Orders": "send",
    }
    assert found["channels"]["eu-orders:Bill"]["description"] == "Bills an order."
    assert found["channels"]["eu-invoices:Publisher"]["description"] == "one for each order"
    assert found["components"]["schemas"]["Order"]["properties"] == {"id": {"title": "Id", "type": "integer"}}
    assert {"Order", "Invoice"} <= set(found["components"]["schemas"])


def test_the_document_of_version_2_names_the_same_channels() -> None:
    assert set(document("2.6.0")["channels"]) == {"eu-orders:Bill", "eu-invoices:Publisher", "Orders"}


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_neither_user_nor_secret_is_in_the_document(version: str) -> None:
    text = str(document(version))
    assert "9876" in text
    assert "hidden" not in text
    assert "app@" not in text


def test_an_app_makes_the_document_of_its_broker() -> None:
    app = FastStream(HalfmqBroker(group="shop"), logger=None, specification=AsyncAPI(title="shop"))
    assert app.schema.to_specification().to_jsonable()["info"]["title"] == "shop"
