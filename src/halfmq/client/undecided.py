"""Queries which transactions are still undecided: their markers must not be pruned."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from halfmq.client.connection import Answer, Connection, NotSent
from halfmq.errors import ConnectError, UnsupportedCombination
from halfmq.wire.remoting.codes import HMQ_UNDECIDED
from halfmq.wire.remoting.operators import UNDECIDED_IDS_MAX, decode_ids, encode_ids

if TYPE_CHECKING:
    from halfmq.client.connector import Address
    from halfmq.client.context import ClientContext

_WHAT = "asking what is undecided"


async def undecided_of(context: "ClientContext", ids: Iterable[str]) -> set[str]:
    """The subset of transaction ``ids`` whose markers must be kept: undecided at any known broker, in any producer group, or with a verdict
    that is still to be compared with its marker.

    Raises:
        ConnectError: a broker did not respond, so the answer would be incomplete.
        UnsupportedCombination: a broker is Apache RocketMQ, which has no such request.
        RequestFailed: a broker rejected the request.
    """
    asked = list(ids)
    router = context.router
    whole = context.attempts(_WHAT)
    try:
        await whole.within(router.learn_brokers())
    except NotSent as error:
        raise ConnectError(f"{_WHAT}: no name server answers: {error}") from error
    brokers = router.brokers()
    if not brokers:
        raise ConnectError(f"{_WHAT}: no broker is known", hint="send or consume something first")
    found: set[str] = set()
    for name, address in brokers.items():
        for start in range(0, len(asked), UNDECIDED_IDS_MAX):
            found |= await _ask(context, name, address, asked[start : start + UNDECIDED_IDS_MAX], whole.left_s())
    return found


async def _ask(context: "ClientContext", name: str, address: "Address", ids: list[str], timeout_s: float) -> set[str]:
    """Query one broker."""

    async def request(connection: Connection, timeout_s: float) -> Answer:
        if not connection.is_halfmq:
            raise UnsupportedCombination(
                f"broker {name} is Apache RocketMQ, which does not list undecided transactions",
                hint="it sends 15 checks, by default within about 15 minutes: prune much older markers, with undecided=()",
            )
        return await connection.request(HMQ_UNDECIDED, None, encode_ids(ids), timeout_s)

    attempts = context.attempts(f"{_WHAT} at {name}", timeout_s)
    answer = await attempts.ask(lambda: context.brokers.get(address), request)
    return set(decode_ids(answer.body))
