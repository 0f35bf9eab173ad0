"""A name that begins with HMQ_ is ours: each way to send refuses it from users, also one that only a later version knows."""

import importlib
import inspect
import pkgutil
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool
from tests.support.scripted_broker import ScriptedBroker, client_of
from tests.support.virtual_time import in_virtual_time
from tests.unit.client.test_arguments import Commits, Nowhere
from tests.unit.sql.memory_broker import MemoryBroker, MemoryClient

import halfmq
from halfmq.client.async_client import AsyncClient
from halfmq.client.message import Message
from halfmq.client.outgoing import compose
from halfmq.errors import NoReply, UsageError
from halfmq.model import properties as names
from halfmq.sql import MarkerTable, Outbox

OURS = sorted(
    {value for name, value in vars(names).items() if name.startswith("HMQ_")} | {"HMQ_", "HMQ_OF_A_LATER_VERSION"}
)
#: As other programs may name theirs.
THEIRS = ["hmq_tx_id", "XHMQ_TX_ID", "HMQ", "hmq-tcc-id"]


class Held(NamedTuple):
    mq: AsyncClient
    message: Message
    session: Session
    markers: MarkerTable
    outbox: Outbox
    memory: MemoryBroker


async def by_block_of_a_session(held: Held, properties: Any) -> None:
    with held.markers.bind(MemoryClient(held.memory), held.session) as tx:
        tx.send("t", b"x", properties=properties)


async def by_outbox(held: Held, properties: Any) -> None:
    with held.session.begin():
        held.outbox.send(held.session, "t", b"x", properties=properties)


async def by_compensation(held: Held, properties: Any) -> None:
    with held.message._sending(Nowhere()):
        await held.message.compensate("t", b"x", properties=properties)


async def by_begin(held: Held, properties: Any) -> None:
    async with held.mq.begin() as tx:
        tx.send("t", b"x", properties=properties)


async def by_request(held: Held, properties: Any) -> None:
    with suppress(NoReply):  # nobody consumes it
        await held.mq.request("t", b"x", timeout=0.1, properties=properties)


async def by_compose(held: Held, properties: Any) -> None:
    compose("t", b"x", properties=properties)


WAYS: dict[str, Any] = {
    "compose": by_compose,
    "AsyncClient.send": lambda held, given: held.mq.send("t", b"x", properties=given),
    "AsyncClient.send_many": lambda held, given: held.mq.send_many("t", [b"x"], properties=given),
    "AsyncClient.request": by_request,
    "AsyncClient.send_in_transaction": lambda held, given: held.mq.send_in_transaction(
        "t", b"x", listener=Commits(), properties=given
    ),
    "Transaction.send": by_begin,
    "SqlTransaction.send": by_block_of_a_session,
    "Outbox.send": by_outbox,
    "Message.compensate": by_compensation,
}
#: They pass on what one of the above, or ``compose``, examines.
PASS_ON = {
    "Client.request", "Client.send", "Client.send_many", "Client.send_in_transaction", "Sends.send", "with_own", "_checked_properties",
    "DirectDeliveries.deliver",
}  # fmt: skip


def test_the_table_has_every_way() -> None:
    found = set()
    for module in pkgutil.walk_packages(halfmq.__path__, "halfmq."):
        if module.name.partition(".")[2].partition(".")[0] not in ("client", "sql", "relay"):
            continue
        members = vars(importlib.import_module(module.name)).values()
        own = [one for one in members if getattr(one, "__module__", "") == module.name]
        for one in [*own, *(method for cls in own if inspect.isclass(cls) for method in vars(cls).values())]:
            if inspect.isfunction(one):
                parameter = inspect.signature(one).parameters.get("properties")
                if parameter is not None and "Mapping" in str(parameter.annotation):
                    found.add(one.__qualname__)
    assert found == WAYS.keys() | PASS_ON


@pytest.mark.parametrize("way", WAYS)
@in_virtual_time
async def test_ours_are_refused_and_those_of_others_travel(way: str) -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata = MetaData()
    markers, outbox = MarkerTable(metadata, min_age_s=0), Outbox(metadata)
    metadata.create_all(engine)
    broker, memory = ScriptedBroker(queues=1), MemoryBroker()
    broker.topics.add("t")
    broker.append("t", 0, b"x")
    async with client_of(broker.network()) as mq, mq.consumer("t", group="g") as messages:
        message = await messages.get(5)
        assert message is not None
        stored = len(broker.logs["t", 0])
        for name in OURS:
            with Session(engine) as session, pytest.raises(UsageError, match=f"'{name}' is reserved"):
                await WAYS[way](Held(mq, message, session, markers, outbox, memory), {name: "1"})
        assert (len(broker.logs["t", 0]), broker.halves) == (stored, [])
        for name in THEIRS:
            with Session(engine) as session:
                await WAYS[way](Held(mq, message, session, markers, outbox, memory), {name: "1"})
    engine.dispose()


def test_each_of_ours_is_one_of_a_message_that_is_copied_or_one_that_is_not() -> None:
    known = {value for name, value in vars(names).items() if name.startswith("HMQ_")}
    assert known == names.CARRIED | (names.SYSTEM & known)
    assert not names.CARRIED & names.SYSTEM
    assert not [name for name in names.RESERVED if name.startswith(names.OWN_PREFIX)], "the prefix says it"
