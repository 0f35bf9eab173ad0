"""Which samples of the mixed load count as flat, and which do not."""

from tests.soak.mixed import is_flat


def windows(*rss_mib: float, descriptors: float = 100) -> list[dict[str, float]]:
    return [{"rss_mib": one, "descriptors": descriptors} for one in rss_mib]


def test_growth_in_the_first_five_minutes_is_legal_and_later_growth_is_not() -> None:
    assert is_flat(windows(50, 80, 82, 79, 81))
    assert not is_flat(windows(50, 80, 82, 85, 90))


def test_growing_descriptors_are_detected_and_varying_ones_are_not() -> None:
    few, many = windows(80), windows(80, descriptors=150)
    assert not is_flat(windows(50) + few + few + many + many)
    assert is_flat(windows(50) + few + many + few + many)


def test_a_run_that_is_too_short_counts_as_flat() -> None:
    assert is_flat(windows(50))
