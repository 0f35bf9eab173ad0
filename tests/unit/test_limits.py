"""Bounds fit each other."""

from halfmq import limits


def test_bounds_fit_each_other() -> None:
    assert limits.BODY_BYTES_MAX + limits.PROPERTIES_BYTES_MAX < limits.FRAME_BYTES_MAX
    assert limits.PULL_SUSPEND_MAX_MS < 30_000, "the Java client gives a pull up after 30 s"
    assert limits.CHECK_POLL_WAIT_MIN_MS < limits.CHECK_POLL_WAIT_MAX_MS < 30_000, (
        "a request of the Java client lives 30 s"
    )
    assert limits.SKIP_AGE_MIN_MS > limits.CHECK_IMMUNITY_MS + limits.CHECK_INTERVAL_MS
    assert limits.CHECK_INTERVAL_MS <= limits.CHECK_INTERVAL_MAX_MS
    assert list(limits.DELAY_LEVELS_MS) == sorted(limits.DELAY_LEVELS_MS)
    assert len(limits.DELAY_LEVELS_MS) == 18
    assert limits.PROPERTIES_BYTES_MAX < 1 << 15, "their length is a signed short"
