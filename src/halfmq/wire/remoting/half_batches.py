"""Commands of halfmq for half batches, and for decisions on the batches of a query (29012 to 29014).

    HMQ_PREPARE_BATCH  29012  ext of ``PrepareFields``; body: the payload, as in ``model.half_batch``
        response  code 0, ext ``offset`` (log offset) and ``halfIndex``
                  code 604: the batch is decided (ext HMQ_VERDICT, HMQ_POSITION): send nothing more of it; or a later run has begun
                  (ext ``fenced``); or it is another stream's query (ext ``otherStream``)
    HMQ_DECIDE         29013  ext ``group``, ``query``, ``batch``, ``run``, ``digest`` (32 hex digits), perhaps ``last``; body: JSON [[attempt, number
                              of half batches, number of messages, sum of their checksums modulo 2**32], ...]
        response  code 0, ext ``position`` and ``repeated``
                  code 604: HMQ_VERDICT and HMQ_POSITION if it was decided with other content, ``missing`` if half batches are not
                  here, ``fenced`` if a later run has begun, ``otherStream`` if the query belongs to another stream or to batch writes
    HMQ_DECISION       29014  ext ``query``, ``batch``, ``run``; without ``query`` only the store host is answered
        response  code 0, ext ``storeHost`` (hex, for the payload), ``decided``, ``digest`` (hex; empty if it is not known any more),
                  ``position``, ``lastBatch``, and the request's ``queryTopic``: an earlier version ignores that field, and does not
                  repeat it
                  code 604: ``fenced``, ``otherStream``

All three may have ``queryTopic`` and ``stream``: see ``model.query_batch.QueryBatch``. Without them, as of clients of earlier versions, the query is
the first of its name.

A half batch outside of a query has a ``txId``, ``index`` and ``count`` like a half message, and is ended by END_TRANSACTION (37) with
``halfIndex`` and ``offset`` of any of its half batches.

Response code 29: an invalid field. Pure functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.query_batch import QueryBatch

EXT_FENCED: Final = "fenced"
EXT_MISSING: Final = "missing"
EXT_OTHER_STREAM: Final = "otherStream"
DIGEST_BYTES: Final = 16


class PrepareFields(NamedTuple):
    """The ext of HMQ_PREPARE_BATCH. Either ``tx_id``, or ``query``, ``batch``, ``run`` and ``attempt``."""

    group: str
    topic: str
    queue_id: int
    messages: int
    #: CRC-32 of the payload.
    checksum: int
    #: Number of the half batch in its attempt, or in its transaction, from 0.
    index: int  # type: ignore[assignment]  # shadows tuple.index and tuple.count, which are not used
    #: Number of half batches of the transaction; 0: not stated yet.
    count: int = 0  # type: ignore[assignment]
    tx_id: str = ""
    query: str = ""
    batch: int = 0
    run: str = ""
    attempt: str = ""
    #: Time before the first check, ms; -1: the broker's setting.
    grace_ms: int = -1
    #: Number of queues, if this request creates the topic; the default is that of a send (``fields.SendFields``).
    default_queues: int = 4
    #: 1: all messages have delays, and the payload states them.
    delayed: int = 0
    query_topic: str = ""
    stream: str = ""


class DecideFields(NamedTuple):
    """The ext of HMQ_DECIDE."""

    group: str
    batch: QueryBatch
    digest: bytes
    #: Whether the query has no further batches, so that the broker may forget it once the decision is past retention.
    is_last: bool = False


class WinnerRow(NamedTuple):
    """An attempt that wins, and the sums over what it has prepared."""

    attempt: str
    half_batches: int
    messages: int
    checksum: int


class DecisionAnswer(NamedTuple):
    """The response to HMQ_DECISION."""

    store_host: bytes
    is_decided: bool
    digest: bytes
    position: int
    last_batch: int
    #: That of the request; "" also from a broker that does not know it.
    query_topic: str = ""


_NAMES: Final = {
    "group": "group", "topic": "topic", "queue_id": "queueId", "messages": "messages", "checksum": "checksum",
    "index": "index", "count": "count", "tx_id": "txId", "query": "query", "batch": "batch", "run": "run",
    "attempt": "attempt", "grace_ms": "graceMs", "default_queues": "defaultTopicQueueNums", "delayed": "delayed",
    "query_topic": "queryTopic", "stream": "stream",
}  # fmt: skip
_OMITTED_IF_DEFAULT: Final = frozenset({"delayed", "query_topic", "stream"})
_winners: Final = msgspec.json.Decoder(list[WinnerRow])


def prepare_ext(fields: PrepareFields) -> dict[str, object]:
    """Ext of the request HMQ_PREPARE_BATCH."""
    return {_NAMES[name]: value for name, value in fields._asdict().items() if value or name not in _OMITTED_IF_DEFAULT}


def read_prepare(ext: Mapping[str, str]) -> PrepareFields:
    """Inverse of ``prepare_ext``. Raises ProtocolError, which names the field."""
    values: dict[str, Any] = {}
    for name, kind in PrepareFields.__annotations__.items():
        said = ext.get(_NAMES[name])
        if said is not None:
            values[name] = said if kind is str else read_number(_NAMES[name], said)
    missing = [
        _NAMES[name]
        for name in PrepareFields._fields
        if name not in values and name not in PrepareFields._field_defaults
    ]
    if missing:
        raise ProtocolError(f"the request has no {', '.join(missing)}")
    return PrepareFields(**values)


def place_ext(log_offset: int, half_index: int) -> dict[str, object]:
    """Ext of the response to HMQ_PREPARE_BATCH."""
    return {"offset": log_offset, "halfIndex": half_index}


def read_place(ext: Mapping[str, str]) -> tuple[int, int]:
    """(log offset, half index) of a stored half batch. Raises ProtocolError."""
    return read_number("offset", ext.get("offset", "")), read_number("halfIndex", ext.get("halfIndex", ""))


def decide_ext(fields: DecideFields) -> dict[str, object]:
    """Ext of the request HMQ_DECIDE."""
    ext = {"group": fields.group, "digest": fields.digest.hex(), **decision_ext(fields.batch)}
    return {**ext, "last": True} if fields.is_last else ext


def read_decide(ext: Mapping[str, str]) -> DecideFields:
    """Inverse of ``decide_ext``. Raises ProtocolError, which names the field."""
    digest = _hex("digest", ext.get("digest", ""))
    if len(digest) != DIGEST_BYTES:
        raise ProtocolError(f"digest has {len(digest)} bytes instead of {DIGEST_BYTES}")
    is_last = ext.get("last", "").lower() == "true"
    return DecideFields(ext.get("group", ""), read_batch(ext), digest, is_last)


def encode_winners(winners: Sequence[WinnerRow]) -> bytes:
    """Body of HMQ_DECIDE."""
    return msgspec.json.encode(winners)


def decode_winners(body: bytes | bytearray | memoryview) -> list[WinnerRow]:
    """Inverse of ``encode_winners``. Raises ProtocolError, also if there are more winners than a transaction has half batches: they are
    counted before they are decoded.
    """
    count = bytes(body).count(b"[") - 1
    if count > limits.TRANSACTION_HALF_BATCHES_MAX:
        raise ProtocolError(f"{count} winners; the maximum is {limits.TRANSACTION_HALF_BATCHES_MAX}")
    try:
        return _winners.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the winners are malformed: {error}") from error


def decision_ext(batch: QueryBatch | None) -> dict[str, object]:
    """Ext of the request HMQ_DECISION; without a batch only the store host is answered."""
    if batch is None:
        return {}
    ext: dict[str, object] = {"query": batch.query, "batch": batch.batch, "run": batch.run}
    if batch.topic:
        ext["queryTopic"] = batch.topic
    if batch.stream:
        ext["stream"] = batch.stream
    return ext


def read_batch(ext: Mapping[str, str]) -> QueryBatch:
    """Inverse of ``decision_ext`` with a batch. Raises ProtocolError. Check it with ``problem_of``."""
    number = read_number("batch", ext.get("batch", ""))
    return QueryBatch(
        ext.get("query", ""), number, ext.get("run", ""), ext.get("queryTopic", ""), ext.get("stream", "")
    )


def answer_ext(answer: DecisionAnswer) -> dict[str, object]:
    """Ext of the response to HMQ_DECISION."""
    ext: dict[str, object] = {
        "storeHost": answer.store_host.hex(),
        "decided": answer.is_decided,
        "digest": answer.digest.hex(),
        "position": answer.position,
        "lastBatch": answer.last_batch,
    }
    return {**ext, "queryTopic": answer.query_topic} if answer.query_topic else ext


def read_answer(ext: Mapping[str, str]) -> DecisionAnswer:
    """Inverse of ``answer_ext``. Raises ProtocolError."""
    return DecisionAnswer(
        _hex("storeHost", ext.get("storeHost", "")),
        ext.get("decided", "").lower() == "true",
        _hex("digest", ext.get("digest", "")),
        read_number("position", ext.get("position", "-1")),
        read_number("lastBatch", ext.get("lastBatch", "-1")),
        ext.get("queryTopic", ""),
    )


def read_number(name: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise ProtocolError(f"{name} is {text[:40]!r}, not a number")
    return int(text)


def _hex(name: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ProtocolError(f"{name} is {text[:40]!r}, not hex digits") from error
