"""Fields of the commands for half batches: there and back, and what is malformed is named."""

import pytest

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.query_batch import QueryBatch
from halfmq.wire.remoting.half_batches import (
    DecideFields,
    DecisionAnswer,
    PrepareFields,
    WinnerRow,
    answer_ext,
    decide_ext,
    decision_ext,
    decode_winners,
    encode_winners,
    prepare_ext,
    read_answer,
    read_decide,
    read_number,
    read_prepare,
)


def as_received(ext: dict[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}


@pytest.mark.parametrize(
    "fields",
    [
        PrepareFields("G", "T", 3, 100, 0xFFFFFFFF, 2, query="q", batch=7, run="r1", attempt="0.5", grace_ms=60_000),
        PrepareFields("G", "T", 3, 1, 5, 0, query="q", run="r1", attempt="0.5", query_topic="*", stream="s-1"),
        PrepareFields("G", "T", 0, 1, 0, 0, 1, tx_id="tx-1"),
    ],
)
def test_half_batch_is_read_as_it_was_written(fields: PrepareFields) -> None:
    assert read_prepare(as_received(prepare_ext(fields))) == fields


def test_decision_is_read_as_it_was_written() -> None:
    fields = DecideFields("G", QueryBatch("q", 7, "r1"), bytes(range(16)))
    of_topic = fields._replace(batch=QueryBatch("q", 7, "r1", "orders", "s-1"))
    assert read_decide(as_received(decide_ext(of_topic))) == of_topic
    last = fields._replace(is_last=True)
    assert read_decide(as_received(decide_ext(last))) == last
    winners = [WinnerRow("0.5", 2, 1_000, 0xFFFFFFFF), WinnerRow("1.6", 1, 1, 0)]
    assert read_decide(as_received(decide_ext(fields))) == fields
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


def test_without_a_query_only_the_store_host_is_requested() -> None:
    assert decision_ext(None) == {}
    assert decision_ext(QueryBatch("q", 3, "r")) == {"query": "q", "batch": 3, "run": "r"}


@pytest.mark.parametrize("text", ["", "-", "x", "1.5", "\u0665", "9" * 20, "--1", "0x1"])
def test_number_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ProtocolError, match="batch is"):
        read_number("batch", text)


@pytest.mark.parametrize("body", [b"", b"{}", b"[[1,2,3,4]]", b'[["a",1]]', b"[" * 5_000, b"\xff"])
def test_malformed_winners_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="winners"):
        decode_winners(body)


def test_missing_and_malformed_fields_are_refused() -> None:
    with pytest.raises(ProtocolError, match="no queueId, messages, checksum, index"):
        read_prepare({"group": "G", "topic": "T"})
    with pytest.raises(ProtocolError, match="queueId"):
        read_prepare({"queueId": "three"})
    with pytest.raises(ProtocolError, match="digest has 2 bytes"):
        read_decide({"digest": "abcd", "batch": "1"})
    with pytest.raises(ProtocolError, match="digest is"):
        read_decide({"digest": "xyz", "batch": "1"})


def test_as_many_winners_as_a_transaction_has_half_batches_are_read_and_more_are_counted_only() -> None:
    winners = [WinnerRow(f"{number}.0", 1, 1, 1) for number in range(limits.TRANSACTION_HALF_BATCHES_MAX)]
    assert decode_winners(encode_winners(winners)) == winners
    with pytest.raises(ProtocolError, match="16385 winners"):
        decode_winners(encode_winners([*winners, winners[0]])[:-1] + b"no JSON")
