"""Limits, policy and figures of producer groups on the wire."""

import pytest

from halfmq.errors import ProtocolError
from halfmq.model.pending import GroupStats
from halfmq.wire.remoting.producer_groups import (
    LIMITS,
    STATS,
    ProducerChange,
    ProducerLimits,
    decode_change,
    encode_change,
)

OF_SHOP = ProducerLimits("shop", 15, "rollback", 86_400_000, -1, 5, "ada", 1_000_000, 1 << 34)
FIGURES = GroupStats("shop", 3, 10, 4_000, 9_000, 60_000, 1, 2, 1, 7, 8, 30_000, 15, "set-aside", 0, "ada")


def test_a_change_names_only_what_changes() -> None:
    change = ProducerChange(check_limit=0, past_limit="wait")
    assert encode_change(change) == b'{"check_limit":0,"past_limit":"wait"}'
    assert decode_change(encode_change(change)) == change
    assert decode_change(b"") == ProducerChange()
    assert ProducerChange().is_empty
    assert not change.is_empty


def test_limits_and_figures_come_through() -> None:
    assert LIMITS.decode(LIMITS.encode(OF_SHOP)) == OF_SHOP
    assert STATS.decode(STATS.encode([FIGURES])) == [FIGURES]


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
        LIMITS.decode(body)
    with pytest.raises(ProtocolError, match="HMQ_STATS"):
        STATS.decode(body)
