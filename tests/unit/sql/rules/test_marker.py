"""What the rows of a marker table say, and which of them are pruned."""

import pytest

from halfmq.client.outcome import Outcome
from halfmq.errors import UsageError
from halfmq.sql.rules.marker import Pruned, Seen, keys_to_read, prunable_before_ms, pruned, seen
from halfmq.sql.rules.table_identity import PRUNE_AGE_MIN_S, RESERVED, Bounds, reserved_rows

NOON_MS = 1_790_000_000_000


@pytest.mark.parametrize(
    ("value", "outcome"), [("P", Outcome.UNKNOWN), ("C", Outcome.COMMIT), ("R", Outcome.ROLLBACK), (None, None)]
)
@pytest.mark.parametrize("has_identity", [True, False])
def test_rows_that_were_read(value: str | None, outcome: Outcome | None, has_identity: bool) -> None:
    assert keys_to_read("t1") == ("t1", *RESERVED)
    rows = [("t1", value, NOON_MS)] if value is not None else []
    if has_identity:
        rows += [(key, "C", number) for key, number in reserved_rows(7, 5).items()]
    assert seen(rows, "t1", "mq_tx") == Seen(outcome, Bounds((1 << 62) + 7, 5) if has_identity else None)


def test_row_of_another_id_is_refused() -> None:
    with pytest.raises(UsageError, match="binary collation"):
        seen([("T1", "C", NOON_MS)], "t1", "mq_tx")


def test_age_is_in_seconds_and_at_least_an_hour() -> None:
    assert prunable_before_ms(NOON_MS, PRUNE_AGE_MIN_S) == NOON_MS - 3_600_000
    with pytest.raises(UsageError, match="3600 seconds"):
        prunable_before_ms(NOON_MS, PRUNE_AGE_MIN_S - 1)


def test_pruned_are_all_but_the_undecided_and_the_horizon_is_after_them() -> None:
    rows = [(10, "a"), (30, "b"), (20, "c"), (40, "d")]
    assert pruned(rows, ["d", "elsewhere"]) == Pruned(["a", "b", "c"], 31)
    assert pruned(rows, ["a", "b", "c", "d"]) is None
    assert pruned([], []) is None
