"""Fences a global transaction at the broker that has it, before a participant cancels its branch."""

from typing import TYPE_CHECKING

from halfmq.client.connection import Answer, Connection
from halfmq.client.receipts import COMMITTED, ROLLED_BACK, UNDECIDED, Verdict
from halfmq.errors import ProtocolError, UnsupportedCombination
from halfmq.wire.remoting.codes import EXT_VERDICT, HMQ_FENCE
from halfmq.wire.remoting.fence import FenceFields, fence_ext, read_position

if TYPE_CHECKING:
    from halfmq.client.context import ClientContext


async def fence_at(context: "ClientContext", broker: str, fields: FenceFields) -> Verdict:
    """What the transaction is. Raises: see ``AsyncClient.fence``."""
    answer = await _ask(context, broker, f"the fence of {fields.tx_id}", fence_ext(fields))
    standing = answer.ext.get(EXT_VERDICT, "")
    if standing == COMMITTED:
        return COMMITTED
    if standing == ROLLED_BACK:
        return ROLLED_BACK
    if standing == UNDECIDED:
        return UNDECIDED
    raise ProtocolError(f"the fence of {fields.tx_id}: {broker} answered {standing[:40]!r}")


async def position_at(context: "ClientContext", broker: str) -> int:
    """The end of the broker's log now: the ``since`` of a transaction that begins. Raises: as ``fence_at``."""
    answer = await _ask(context, broker, f"asking {broker} where its log ends", {})
    return read_position(answer.ext)


async def _ask(context: "ClientContext", broker: str, what: str, ext: dict[str, str]) -> Answer:
    async def connect() -> Connection:
        if context.router.address_of(broker) is None:
            await context.router.learn_brokers()
        return await context.broker(broker)

    async def request(connection: Connection, timeout_s: float) -> Answer:
        await connection.ready(timeout_s)
        if not connection.is_halfmq:
            raise UnsupportedCombination(
                f"{what}: broker {broker} is Apache RocketMQ, which has no fence",
                hint="Try/Confirm/Cancel needs a halfmq broker",
            )
        return await connection.request(HMQ_FENCE, ext, timeout_s=timeout_s)

    return await context.attempts(what).ask(connect, request)
