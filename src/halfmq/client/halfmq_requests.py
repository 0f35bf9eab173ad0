"""Requests that only halfmq brokers answer, sent again until one does: each may be repeated."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from halfmq.client.connection import Answer, Connection, NotSent
from halfmq.client.outcome import Outcome
from halfmq.client.receipts import COMMITTED, ROLLED_BACK, UNDECIDED, Verdict
from halfmq.client.refusals import refusal
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, UnsupportedCombination
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.codes import EXT_VERDICT, HMQ_COMPARED, HMQ_FENCE, HMQ_UNDECIDED, ResponseCode
from halfmq.wire.remoting.coordinators import FenceFields, LogEnd
from halfmq.wire.remoting.operators import (
    EXT_AGREES,
    UNDECIDED_IDS_MAX,
    ComparedFields,
    OutcomeName,
    decode_ids,
    encode_ids,
)

if TYPE_CHECKING:
    from halfmq.client.context import ClientContext
    from halfmq.client.retry import Attempts


async def ask(
    context: "ClientContext",
    broker: str,
    code: int,
    fields: Mapping[str, Any] | None,
    what: str,
    timeout_s: float | None,
    body: bytes = b"",
    *,
    lacks: str,
    hint: str = "",
    final: Collection[int] = (),
) -> Answer:
    """The answer of the broker of this name. ``what``, ``timeout_s``: as for ``ClientContext.attempts``. ``lacks``: why
    Apache RocketMQ cannot be asked. ``final``: response codes that are not tried again.

    Raises: as ``Attempts.ask``. UnsupportedCombination: the broker is Apache RocketMQ.
    """

    async def connect() -> Connection:
        if context.router.address_of(broker) is None:
            await context.router.learn_brokers()
        return await context.broker(broker)

    async def request(connection: Connection, timeout_s: float) -> Answer:
        if not connection.is_halfmq:
            raise UnsupportedCombination(f"broker {broker} is Apache RocketMQ, which {lacks}", hint=hint)
        answer = await connection.request(code, fields, body, timeout_s)
        if answer.code in final:
            raise refusal(answer.code, answer.remark, what, answer.ext.get(EXT_VERDICT, ""))
        return answer

    return await context.attempts(what, timeout_s).ask(connect, request)


async def _known_brokers(context: "ClientContext", what: str, whole: "Attempts") -> list[str]:
    """Names of all brokers, after a name server was asked. Raises ConnectError: there is none, or nobody answers."""
    try:
        await whole.within(context.router.learn_brokers())
    except NotSent as error:
        raise ConnectError(f"{what}: no name server answers: {error}") from error
    return [*context.router.brokers()]


async def undecided_of(context: "ClientContext", ids: Collection[str]) -> set[str]:
    """See ``AsyncClient.undecided``."""
    what = "asking what is undecided"
    asked, found = list(ids), set[str]()
    whole = context.attempts(what)
    for broker in await _known_brokers(context, what, whole):
        for start in range(0, len(asked), UNDECIDED_IDS_MAX):
            page = encode_ids(asked[start : start + UNDECIDED_IDS_MAX])
            answer = await ask(
                context, broker, HMQ_UNDECIDED, None, f"{what} at {broker}", whole.left_s(), page,
                lacks="does not list undecided transactions",
                hint="it sends 15 checks, by default within about 15 minutes: prune much older markers, with undecided=()",
            )  # fmt: skip
            found |= set(decode_ids(answer.body))
    return found


async def report(context: "ClientContext", group: str, tx_id: str, outcome: Outcome, source: str) -> bool:
    """See ``AsyncClient.report_outcome``. Asks the brokers one after the other for the one that has the transaction."""
    what = f"reporting the outcome of {tx_id}"
    whole = context.attempts(what)
    fields = report_fields(group, tx_id, outcome, source)
    missing: RequestFailed | None = None
    for broker in await _known_brokers(context, what, whole):
        try:
            answer = await ask(
                context, broker, HMQ_COMPARED, fields, what, whole.left_s(), lacks="compares no verdicts",
                final=(ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER),  # not here; undecided
            )  # fmt: skip
        except RequestFailed as error:
            if error.response_code != ResponseCode.SYSTEM_ERROR:
                raise
            missing = error
            continue
        return answer.ext.get(EXT_AGREES) == "true"
    assert missing is not None
    raise missing


def report_fields(group: str, tx_id: str, outcome: Outcome, source: str, *, is_marker: bool = False) -> dict[str, Any]:
    """Fields of HMQ_COMPARED."""
    name: OutcomeName = "COMMIT" if outcome is Outcome.COMMIT else "ROLLBACK"
    return write_fields(ComparedFields(group=group, tx_id=tx_id, outcome=name, source=source, is_marker=is_marker))


async def fence_at(context: "ClientContext", broker: str, fields: FenceFields) -> Verdict:
    """See ``AsyncClient.fence``."""
    answer = await _fence(context, broker, f"the fence of {fields.tx_id}", write_fields(fields))
    standing = answer.ext.get(EXT_VERDICT, "")
    if standing not in (COMMITTED, ROLLED_BACK, UNDECIDED):
        raise ProtocolError(f"the fence of {fields.tx_id}: {broker} answered {standing[:40]!r}")
    return standing  # type: ignore[return-value]


async def position_at(context: "ClientContext", broker: str) -> int:
    """The end of the broker's log now: the ``since`` of a transaction that begins. Raises: as ``fence_at``."""
    answer = await _fence(context, broker, f"asking {broker} where its log ends", {})
    return answer.read(LogEnd).position


async def _fence(context: "ClientContext", broker: str, what: str, fields: dict[str, Any]) -> Answer:
    hint = "Try/Confirm/Cancel needs a halfmq broker"
    return await ask(context, broker, HMQ_FENCE, fields, what, None, lacks="has no fence", hint=hint)
