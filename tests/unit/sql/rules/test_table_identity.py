"""Which table this is, and up to when its markers may be gone: what that says about a missing one."""

import pytest

from halfmq.sql.rules.table_identity import (
    HORIZON,
    IDENTITY,
    IDENTITY_BITS,
    PREPARED_AFTER_MARKER_MAX_MS,
    PRUNE_AGE_MIN_S,
    Bounds,
    Origin,
    bounds_of,
    first_horizon_ms,
    read_origin,
    reserved_rows,
    why_absence_is_no_answer,
)

#: Identities look like this.
ONE, TWO = (1 << 62) + 7, (1 << 63) - 1
NOON_MS = 1_790_000_000_000


def why(here: Bounds | None, origin: str, prepared_at_ms: int | None = None) -> str:
    return why_absence_is_no_answer("mq_tx", here, origin, prepared_at_ms)


def test_absence_is_an_answer_in_the_table_it_began_in_from_the_horizon_on() -> None:
    for written_at_ms in (NOON_MS, NOON_MS + 1):
        assert why(Bounds(ONE, NOON_MS), Origin(ONE, written_at_ms).text(), prepared_at_ms=0) == ""
    assert why(Bounds(ONE, 0), Origin(ONE, 0).text()) == ""


def test_below_the_horizon_it_says_up_to_when_markers_may_be_gone_and_what_to_do() -> None:
    said = why(Bounds(ONE, NOON_MS), Origin(ONE, NOON_MS - 1).text())
    assert "up to 2026-09-21 14:13:20+00:00" in said
    assert "halfmq tx commit" in said


def test_in_another_table_it_names_both() -> None:
    said = why(Bounds(ONE, 0), Origin(TWO, NOON_MS).text())
    assert "another database" in said
    assert str(ONE) in said
    assert str(TWO) in said
    assert "identity none" in why(None, Origin(TWO, NOON_MS).text())


def test_remarks_fit_into_what_a_broker_keeps() -> None:
    for origin in (Origin(TWO, NOON_MS - 1).text(), Origin(ONE, NOON_MS).text(), "x" * 1_000):
        assert 0 < len(why(Bounds(TWO, NOON_MS), origin)) <= 200


@pytest.mark.parametrize("origin", ["x", "1", "1.", ".1", "1.2.3", "-1.2", "1.²", "1.2" + "0" * 40, "9" * 5_000 + ".1"])
def test_what_cannot_be_read_is_no_answer(origin: str) -> None:
    assert read_origin(origin) is None
    assert "cannot be read" in why(Bounds(ONE, 0), origin)


def test_origin_reads_what_it_wrote() -> None:
    assert read_origin(Origin(TWO, (1 << 63) - 1).text()) == Origin(TWO, (1 << 63) - 1)


def test_half_of_an_older_client_is_held_against_the_horizon_by_its_age() -> None:
    table = Bounds(ONE, NOON_MS)
    assert why(table, "", None) == ""
    assert why(None, "", NOON_MS) == ""
    assert why(table, "", NOON_MS + PREPARED_AFTER_MARKER_MAX_MS) == ""
    assert "halfmq tx commit" in why(table, "", NOON_MS + PREPARED_AFTER_MARKER_MAX_MS - 1)
    assert why(Bounds(ONE, 0), "", 5) == "", "nothing was ever pruned"


def test_bounds_are_those_of_the_reserved_rows_and_none_without_both() -> None:
    for bits in (0, (1 << IDENTITY_BITS) - 1):
        rows = reserved_rows(bits, NOON_MS)
        assert min(rows.values()) >= 1 << 62, "as a time, never old"
        assert max(rows.values()) < 1 << 63, "a BIGINT"
        assert bounds_of(rows) == Bounds((1 << 62) + bits, NOON_MS)
    for missing in (IDENTITY, HORIZON):
        assert bounds_of({key: value for key, value in reserved_rows(7, 0).items() if key != missing}) is None


def test_first_horizon_leaves_what_no_release_has_pruned() -> None:
    assert first_horizon_ms(NOON_MS) == NOON_MS - PRUNE_AGE_MIN_S * 1000
    assert first_horizon_ms(5) == 0
