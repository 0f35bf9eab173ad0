"""Bodies in both directions: what a dataclass, a Struct and a pydantic model are on the wire, and what is said of one that is wrong."""

import math
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypedDict, runtime_checkable
from uuid import UUID

import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass
from tests.unit.client.test_message import message

from halfmq.client.bodies import why_unsupported
from halfmq.client.outgoing import compose, encode_body
from halfmq.errors import UsageError

AT = datetime(2026, 11, 29, 4, tzinfo=UTC)


@dataclass
class Line:
    sku: str
    pieces: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    at: datetime | None = None


class Placed(msgspec.Struct, rename="camel", tag_field="kind", tag="placed"):
    order_id: Annotated[int, msgspec.Meta(gt=0)]


class Cancelled(msgspec.Struct, rename="camel", tag_field="kind", tag="cancelled"):
    order_id: int


class Customer(pydantic.BaseModel):
    customer_id: int = pydantic.Field(alias="customerId", gt=0)
    since: datetime | None = None


class Strict(pydantic.BaseModel, strict=True):
    at: datetime


class Spot(pydantic.BaseModel):
    x: float


class Unknown:
    """Which neither library knows."""


class Left(pydantic.BaseModel):
    kind: Literal["left"] = "left"


class Right(pydantic.BaseModel):
    kind: Literal["right"] = "right"


@pydantic_dataclass
class Price:
    cents: int = pydantic.Field(ge=0)


class Row(TypedDict):
    id: int


@dataclass
class Visit:
    """A dataclass with a model of pydantic in it."""

    customer: Customer
    others: list[Customer] = field(default_factory=list)
    strict: Strict | None = None


@dataclass
class Nested:
    """A dataclass with such a class in a field of a field."""

    unknown: list["Optional"]


class Optional(TypedDict):
    unknown: Unknown | None


class Pair(NamedTuple):
    unknown: Unknown


class Tree(msgspec.Struct):
    left: "Tree | None" = None


class UnknownTree(msgspec.Struct):
    left: "UnknownTree | None" = None
    unknown: Unknown | None = None


class Colour(Enum):
    RED = "red"


class HasId(Protocol):
    id: int


@runtime_checkable
class HasKeys(Protocol):
    def keys(self) -> Any: ...


@dataclass
class Later:
    """It names a class that does not exist, as one that follows."""

    one: "DoesNotExist"  # type: ignore[name-defined]  # noqa: F821


class LaterModel(pydantic.BaseModel):
    one: "DoesNotExist"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("body", "into", "wire"),
    [
        (Order(7, [Line("tea")], AT), Order, b'{"id":7,"lines":[{"sku":"tea","pieces":1}],"at":"2026-11-29T04:00:00Z"}'),
        (Placed(7), Placed, b'{"kind":"placed","orderId":7}'),
        (Cancelled(7), Placed | Cancelled, b'{"kind":"cancelled","orderId":7}'),
        (Customer(customerId=7, since=AT), Customer, b'{"customerId":7,"since":"2026-11-29T04:00:00Z"}'),
        ([Customer(customerId=7)], list[Customer], b'[{"customerId":7,"since":null}]'),
        (Right(), Left | Right, b'{"kind":"right"}'),
        (Strict(at=AT), Strict, b'{"at":"2026-11-29T04:00:00Z"}'),
        (Price(700), Price, b'{"cents":700}'),
        (
            Visit(Customer(customerId=7), [Customer(customerId=8)], Strict(at=AT)),
            Visit,
            b'{"customer":{"customerId":7,"since":null},"others":[{"customerId":8,"since":null}],"strict":{"at":"2026-11-29T04:00:00Z"}}',
        ),
        ({"id": 7}, Row, b'{"id":7}'),
        ({"id": 7}, dict, b'{"id":7}'),
        ({"id": 7}, object, b'{"id":7}'),
        ([1, 2], list[int], b"[1,2]"),
        (7, int, b"7"),
        ("text", str, b"text"),
        (b"\x00", bytes, b"\x00"),
    ],
)  # fmt: skip
def test_a_body_is_read_as_it_was_sent(body: object, into: Any, wire: bytes) -> None:
    assert encode_body(body) == wire
    assert message(wire).decode(into) == body
    assert why_unsupported(into) == ""


@pytest.mark.parametrize(
    ("into", "says"),
    [
        *[(one, "type <class 'tests.unit.client.test_bodies.Unknown'> is not supported") for one in (
            Unknown, list[Unknown], Unknown | None, dict[str, Unknown], dict[Unknown, int], tuple[Unknown, ...], tuple[int, Unknown],
            Annotated[Unknown, "x"], Nested, Pair, UnknownTree,
        )],
        (HasId, "HasId'> is not supported"),
        (complex, "type <class 'complex'> is not supported"),
        (Callable[[int], int], "Callable'> is not supported"),
        (type[int], "type <class 'type'> is not supported"),
        (msgspec.msgpack.Ext, "Ext'> is not supported"),
        (Order | Line, "more than one dataclass"),
        (Unknown | int, "is not supported"),
        (Customer | Unknown, "Unknown'>"),
        (list[Customer | Unknown], "Unknown'>"),
    ],
)  # fmt: skip
def test_a_type_that_no_body_becomes_is_not_supported(into: Any, says: str) -> None:
    assert says in why_unsupported(into)
    assert "\n" not in why_unsupported(into)


@pytest.mark.parametrize(
    "into",
    [
        str | int | None, bool, None, Any, Literal["a"], Colour, UUID, Decimal, set[int], Tree, Mapping[str, Order], dict, list, Hashable,
        Iterable[int], HasKeys, Customer | None, msgspec.Raw, LaterModel, list[LaterModel],
    ],
)  # fmt: skip
def test_what_json_can_carry_is_supported(into: Any) -> None:
    assert why_unsupported(into) == ""


def test_a_class_that_does_not_exist_yet_is_no_answer() -> None:
    with pytest.raises(NameError):
        why_unsupported(Later)


@pytest.mark.parametrize(
    ("wire", "into", "says"),
    [
        (b'{"id":"7"}', Order, "$.id"),
        (b'{"id":7,"lines":[{"sku":1}]}', Order, "$.lines[0].sku"),
        (b'{"lines":[]}', Order, "missing required field `id`"),
        (b'{"kind":"placed","orderId":0}', Placed, "$.orderId"),
        (b'{"kind":"lost","orderId":1}', Placed | Cancelled, "$.kind"),
        (b'{"customerId":0}', Customer, "customerId"),
        (b'[{"customerId":1},{"customerId":0}]', list[Customer], "1.customerId"),
        (b'{"cents":-1}', Price, "cents"),
        (b'{"customer":{"customerId":1},"others":[{"customerId":0}]}', Visit, "$.others[0]"),
        (b'{"kind":"up"}', Left | Right, "Left.kind"),
        (b"no json", Order, "JSON is malformed"),
        (b'{"id":7}', Unknown, "Expected `Unknown`"),
        (b"\xff", str, "utf-8"),
    ],
)
def test_what_cannot_be_decoded_names_the_field_and_the_message(wire: bytes, into: Any, says: str) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError)) as caught:
        message(wire, topic="orders", UNIQ_KEY="U1").decode(into)
    assert says in str(caught.value)
    assert caught.value.__notes__ == ["the body of <Message U1 orders[3]@41 attempt 1>"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (object(), "of type object, has no JSON form"),
        ({"order": {"lines": [1, object()]}}, "at `$.order.lines[1]`, of type object"),
        (Order(7, [Line(object())]), "at `$.lines[0].sku`, of type object"),  # type: ignore[arg-type]
        (Placed(object()), "at `$.order_id`, of type object"),  # type: ignore[arg-type]
        ({"price": math.nan}, "nan at `$.price`"),
        ({"spots": [Spot(x=1), Spot(x=math.inf)]}, "inf at `$.spots[1].x`"),
        (None, "is None"),
        ("", "is empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_names_the_topic_and_the_field(body: object, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        compose("orders", body)
    assert str(caught.value).startswith("the body for topic orders")
    assert says in str(caught.value)


def test_a_body_that_contains_itself_has_no_form() -> None:
    body: list[Any] = []
    body.append(body)
    with pytest.raises(UsageError, match="has no JSON form"):
        compose("orders", body)


def test_bodies_without_pydantic_do_not_need_it() -> None:
    program = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from dataclasses import dataclass; from halfmq.client.bodies import from_json, to_json\n"
        "@dataclass\nclass Order:\n    id: int\n"
        "assert from_json(to_json(Order(7), 'it'), list[Order] | Order) == Order(7)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
