"""Commands of halfmq for half batches, for decisions on the batches of a query, and for the queries that a broker remembers.

    HMQ_PREPARE_BATCH  29012  ext of ``PrepareFields``; body: the payload, as in ``model.half_batch``
        response  code 0, ext ``offset`` (log offset) and ``halfIndex``
                  code 604: the batch is decided (ext HMQ_VERDICT, HMQ_POSITION): send nothing more of it; or a later run has begun
                  (ext ``fenced``); or it is another stream's query (ext ``otherStream``)
    HMQ_DECIDE         29013  ext ``group``, ``query``, ``batch``, ``run``, ``digest`` (32 hex digits), maybe ``last``; body: [[attempt,
                              number of half batches, number of messages, sum of their checksums modulo 2**32], ...] in JSON
        response  code 0, ext ``position`` and ``repeated``
                  code 604: HMQ_VERDICT and HMQ_POSITION if it was decided with other content, ``missing`` if half batches are not
                  here, ``fenced`` if a later run has begun, ``otherStream`` if the query belongs to another stream or to batch writes
    HMQ_DECISION       29014  ext ``query``, ``batch``, ``run``; without ``query`` only the store host is answered
        response  code 0, ext ``storeHost`` (hex, for the payload), ``decided``, ``digest`` (hex; empty if it is not known any more),
                  ``position``, ``lastBatch``, and the request's ``queryTopic``: an earlier version ignores that field, and does not
                  repeat it
                  code 604: ``fenced``, ``otherStream``
    HMQ_QUERIES        29017  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``QueryInfo``, ...]
    HMQ_FORGET_QUERY   29018  ext ``query``, ``queryTopic``, ``operator``, ``reason``
        response  code 0, ext ``lastBatch``: the last one that was decided, -1: none; 1: no such query; 2: it has undecided batches

The first three may have ``queryTopic`` and ``stream``: see ``model.query_batch.QueryBatch``. Without them, as of clients of earlier
versions, the query is the first of its name.

A half batch outside of a query has a ``txId``, ``index`` and ``count`` like a half message, and is ended by END_TRANSACTION (37) with
``halfIndex`` and ``offset`` of any of its half batches.

Response code 29: an invalid field. Pure functions.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta, field

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.pending import QueryInfo
from halfmq.model.query_batch import QueryBatch
from halfmq.model.text_fields import Count64, Fields, Int32, Int64, UInt32, write_fields
from halfmq.wire.remoting.fields import JsonBody, read_answer_fields

EXT_FENCED: Final = "fenced"
EXT_MISSING: Final = "missing"
EXT_OTHER_STREAM: Final = "otherStream"
EXT_LAST_BATCH: Final = "lastBatch"
DIGEST_BYTES: Final = 16
Hex = Annotated[str, Meta(pattern=r"^([0-9a-fA-F]{2})*\Z", description="text of hexadecimal digits, two for each byte")]
Digest = Annotated[
    str,
    Meta(
        pattern=rf"^[0-9a-fA-F]{{{2 * DIGEST_BYTES}}}\Z", description=f"text of {2 * DIGEST_BYTES} hexadecimal digits"
    ),
]


class PrepareFields(Fields, gc=False):
    """The ext of HMQ_PREPARE_BATCH. Either ``tx_id``, or ``query``, ``batch``, ``run`` and ``attempt``."""

    group: str
    topic: str
    queue_id: Int64
    messages: Int64
    #: CRC-32 of the payload.
    checksum: UInt32
    #: Number of the half batch in its attempt, or in its transaction, from 0.
    index: Int64
    #: Number of half batches of the transaction; 0: not stated yet.
    count: Int64 = 0
    tx_id: str = ""
    query: str = ""
    batch: Int64 = 0
    run: str = ""
    attempt: str = ""
    #: Time before the first check, ms; -1: the broker's setting.
    grace_ms: Int64 = -1
    #: Number of queues, if this request creates the topic; the default is that of a send (``fields.SendFields``).
    default_queues: Int64 = field(name="defaultTopicQueueNums", default=4)
    #: 1: all messages have delays, and the payload states them.
    delayed: Int32 | None = None
    query_topic: str | None = None
    stream: str | None = None


class DecideFields(Fields, gc=False):
    """The ext of HMQ_DECIDE. ``last``: the query has no further batches, so that the broker may forget it once the decision is past
    retention.
    """

    group: str
    digest: Digest
    query: str
    batch: Int64
    run: str
    query_topic: str | None = None
    stream: str | None = None
    last: bool | None = None


class DecisionFields(Fields, gc=False):
    """The ext of HMQ_DECISION; without a query only the store host is answered."""

    query: str | None = None
    batch: Int64 | None = None
    run: str | None = None
    query_topic: str | None = None
    stream: str | None = None


class ForgetQueryFields(Fields, gc=False):
    """HMQ_FORGET_QUERY."""

    query: str = ""
    query_topic: str = ""
    operator: str = ""
    reason: str = ""


class PlaceFields(Fields, gc=False):
    """The ext of the response to HMQ_PREPARE_BATCH: where the half batch is stored."""

    log_offset: Count64 = field(name="offset")
    half_index: Count64


class _AnswerFields(Fields, gc=False):
    store_host: Hex = ""
    decided: bool = False
    digest: Hex = ""
    position: Int64 = -1
    last_batch: Int64 = -1
    query_topic: str | None = None


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


_WINNERS: Final = JsonBody(list[WinnerRow], "the winners are")
#: Response body of HMQ_QUERIES.
QUERIES: Final = JsonBody(list[QueryInfo], "a response to HMQ_QUERIES is")


def batch_of(fields: PrepareFields | DecideFields | DecisionFields) -> QueryBatch:
    """The batch that the request names. Check it with ``problem_of``."""
    batch = -1 if fields.batch is None else fields.batch
    return QueryBatch(fields.query or "", batch, fields.run or "", fields.query_topic or "", fields.stream or "")


def decide_ext(group: str, batch: QueryBatch, digest: bytes, *, is_last: bool = False) -> dict[str, Any]:
    """Ext of the request HMQ_DECIDE."""
    return write_fields(DecideFields(
        group, digest.hex(), batch.query, batch.batch, batch.run, batch.topic or None, batch.stream or None, is_last or None,
    ))  # fmt: skip


def encode_winners(winners: Sequence[WinnerRow]) -> bytes:
    """Body of HMQ_DECIDE."""
    return _WINNERS.encode(winners)


def decode_winners(body: bytes | bytearray | memoryview) -> list[WinnerRow]:
    """Inverse of ``encode_winners``. Raises ProtocolError, also if there are more winners than a transaction has half batches: they are
    counted before they are decoded.
    """
    count = bytes(body).count(b"[") - 1
    if count > limits.TRANSACTION_HALF_BATCHES_MAX:
        raise ProtocolError(f"{count} winners; the maximum is {limits.TRANSACTION_HALF_BATCHES_MAX}")
    return _WINNERS.decode(body)


def decision_ext(batch: QueryBatch) -> dict[str, Any]:
    """Ext of the request HMQ_DECISION."""
    return write_fields(DecisionFields(batch.query, batch.batch, batch.run, batch.topic or None, batch.stream or None))


def answer_ext(answer: DecisionAnswer) -> dict[str, Any]:
    """Ext of the response to HMQ_DECISION."""
    return write_fields(_AnswerFields(
        answer.store_host.hex(), answer.is_decided, answer.digest.hex(), answer.position, answer.last_batch,
        answer.query_topic or None,
    ))  # fmt: skip


def read_answer(ext: Mapping[str, str]) -> DecisionAnswer:
    """Inverse of ``answer_ext``. Raises ProtocolError."""
    said = read_answer_fields(_AnswerFields, ext, "a response to HMQ_DECISION")
    return DecisionAnswer(
        bytes.fromhex(said.store_host), said.decided, bytes.fromhex(said.digest), said.position, said.last_batch,
        said.query_topic or "",
    )  # fmt: skip


def read_place(ext: Mapping[str, str]) -> PlaceFields:
    """Where a half batch is stored. Raises ProtocolError."""
    return read_answer_fields(PlaceFields, ext, "a response to HMQ_PREPARE_BATCH")
