"""Fields of the commands for half batches: there and back, and what is malformed is named."""

from typing import Any

import pytest
from msgspec import ValidationError

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.query_batch import QueryBatch
from halfmq.model.text_fields import read_fields, write_fields
from halfmq.wire.remoting.half_batches import (
    DecideFields,
    DecisionAnswer,
    DecisionFields,
    PrepareFields,
    WinnerRow,
    answer_ext,
    batch_of,
    decide_ext,
    decision_ext,
    decode_winners,
    encode_winners,
    read_answer,
)


def as_received(ext: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}


@pytest.mark.parametrize(
    "fields",
    [
        PrepareFields("G", "T", 3, 100, 0xFFFFFFFF, 2, query="q", batch=7, run="r1", attempt="0.5", grace_ms=60_000),
        PrepareFields("G", "T", 3, 1, 5, 0, query="q", run="r1", attempt="0.5", query_topic="*", stream="s-1"),
        PrepareFields("G", "T", 0, 1, 0, 0, 1, tx_id="tx-1", delayed=1),
    ],
)
def test_half_batch_is_read_as_it_was_written(fields: PrepareFields) -> None:
    assert read_fields(PrepareFields, as_received(write_fields(fields))) == fields
    assert list(write_fields(fields))[:14] == [
        "group", "topic", "queueId", "messages", "checksum", "index", "count", "txId", "query", "batch", "run", "attempt",
        "graceMs", "defaultTopicQueueNums",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "more"),
    [
        (QueryBatch("q", 7, "r1"), {}),
        (QueryBatch("q", 7, "r1", "orders", "s-1"), {"queryTopic": "orders", "stream": "s-1"}),
    ],
)
def test_decision_is_read_as_it_was_written(batch: QueryBatch, more: dict[str, str]) -> None:
    ext = as_received(decide_ext("G", batch, bytes(range(16)), is_last=True))
    assert ext == {
        "group": "G", "digest": bytes(range(16)).hex(), "query": "q", "batch": "7", "run": "r1", **more, "last": "true",
    }  # fmt: skip
    fields = read_fields(DecideFields, ext)
    assert (fields.group, batch_of(fields), fields.digest, fields.last) == ("G", batch, bytes(range(16)).hex(), True)
    assert batch_of(read_fields(DecisionFields, as_received(decision_ext(batch)))) == batch
    assert "last" not in decide_ext("G", batch, bytes(16))


def test_winners_are_read_as_they_were_written() -> None:
    winners = [WinnerRow("0.5", 2, 1_000, 0xFFFFFFFF), WinnerRow("1.6", 1, 1, 0)]
    assert decode_winners(encode_winners(winners)) == winners
    assert decode_winners(b"[]") == []


@pytest.mark.parametrize(
    "answer",
    [
        DecisionAnswer(b"host1234", True, bytes(16), 99, 7),
        DecisionAnswer(b"host1234", False, b"", -1, -1),
        DecisionAnswer(b"host1234", False, b"", -1, -1, "orders"),
    ],
)
def test_answer_is_read_as_it_was_written(answer: DecisionAnswer) -> None:
    assert read_answer(as_received(answer_ext(answer))) == answer


@pytest.mark.parametrize("body", [b"", b"{}", b"[[1,2,3,4]]", b'[["a",1]]', b"[" * 5_000, b"\xff"])
def test_malformed_winners_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="winners"):
        decode_winners(body)


@pytest.mark.parametrize("digest", ["abcd", "xyz", "0" * 33, "0" * 32 + "\n", "0" * 31 + "g"])
def test_a_digest_has_32_hex_digits(digest: str) -> None:
    with pytest.raises(ValidationError, match="digest"):
        read_fields(DecideFields, {"group": "G", "query": "q", "batch": "1", "run": "r", "digest": digest})
    with pytest.raises(ProtocolError, match="storeHost"):
        read_answer({"storeHost": digest[:-1] + "g", "decided": "true"})


def test_as_many_winners_as_a_transaction_has_half_batches_are_read_and_more_are_counted_only() -> None:
    winners = [WinnerRow(f"{number}.0", 1, 1, 1) for number in range(limits.TRANSACTION_HALF_BATCHES_MAX)]
    assert decode_winners(encode_winners(winners)) == winners
    with pytest.raises(ProtocolError, match="16385 winners"):
        decode_winners(encode_winners([*winners, winners[0]])[:-1] + b"no JSON")
