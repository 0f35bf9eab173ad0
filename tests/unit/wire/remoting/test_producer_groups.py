"""Limits, policy and figures of producer groups on the wire."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.model.pending import GroupStats
from halfmq.wire.remoting.producer_groups import (
    ProducerChange,
    ProducerLimits,
    decode_change,
    decode_limits,
    decode_stats,
    encode_change,
    encode_limits,
    encode_stats,
)

LIMITS = ProducerLimits("shop", 15, "rollback", 86_400_000, -1, 5, "ada", 1_000_000, 1 << 34)
STATS = GroupStats("shop", 3, 10, 4_000, 9_000, 60_000, 1, 2, 1, 7, 8, 30_000, 15, "set-aside", 0, "ada")


def test_a_change_names_only_what_changes() -> None:
    change = ProducerChange(check_limit=0, past_limit="wait")
    assert encode_change(change) == b'{"check_limit":0,"past_limit":"wait"}'
    assert decode_change(encode_change(change)) == change
    assert decode_change(b"") == ProducerChange()
    assert ProducerChange().is_empty
    assert not change.is_empty


def test_limits_and_figures_come_through() -> None:
    assert decode_limits(encode_limits(LIMITS)) == LIMITS
    assert decode_stats(encode_stats([STATS])) == [STATS]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"check_limit":"3"}', b'{"past_limit":"commit"}', b'{"chek_limit":3}', b"\xff", b"[" * 5_000],
)
def test_what_is_no_change_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="producer group"):
        decode_change(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[{}]", b"\xff"])
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="HMQ_PRODUCER"):
        decode_limits(body)
    with pytest.raises(ProtocolError, match="HMQ_STATS"):
        decode_stats(body)
