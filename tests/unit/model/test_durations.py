"""Durations as text for people."""

from halfmq.model.durations import span


def test_spans_are_for_people() -> None:
    assert [span(ms) for ms in (-5, 999, 1_000, 119_000, 120_000, 7_200_000, 200_000_000)] == [
        "0 ms", "999 ms", "1 s", "119 s", "2 min", "2 h", "2 days",
    ]  # fmt: skip


def test_a_span_changes_its_unit_at_exactly_two_of_it() -> None:
    for unit_ms, more, less in (
        (86_400_000, "2 days", "47 h"), (3_600_000, "2 h", "119 min"), (60_000, "2 min", "119 s"), (500, "1 s", "999 ms"),
    ):  # fmt: skip
        assert (span(2 * unit_ms), span(2 * unit_ms - 1)) == (more, less)
