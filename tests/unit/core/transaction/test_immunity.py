"""How long a message rests before anybody is asked."""

import pytest

from halfmq.core.transaction.immunity import IMMUNITY_MAX_MS, immunity_ms
from halfmq.model.settings import BrokerSettings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 6_000), (b"10", 10_000), (b"0", 0), (b"-1", 6_000), (b"soon", 6_000), (b"", 6_000),
        (b"999999999", IMMUNITY_MAX_MS), (b"9" * 40, 6_000),
        (b"1", 1_000), (b"259200", IMMUNITY_MAX_MS), (b"259199", IMMUNITY_MAX_MS - 1_000), (b"000000000007", 7_000),
        (b"0000000000007", 6_000),
    ],
)  # fmt: skip
def test_a_message_may_say_its_immunity_within_reason(text: bytes | None, expected: int) -> None:
    pairs = {} if text is None else {b"CHECK_IMMUNITY_TIME_IN_SECONDS": text}
    assert immunity_ms(BrokerSettings(), pairs) == expected


def test_the_longest_immunity_is_three_days() -> None:
    assert IMMUNITY_MAX_MS == 3 * 24 * 60 * 60 * 1_000


def test_the_brokers_setting_counts_without_a_word() -> None:
    assert immunity_ms(BrokerSettings(check_immunity_ms=77), {}) == 77
