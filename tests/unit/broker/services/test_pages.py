"""Which page of a list is asked for, in text that anybody may send."""

import pytest

from halfmq.broker.services.pages import LISTED_MAX, page_count, page_start
from halfmq.core.decision import Refused, Why


def test_nothing_asked_is_the_first_page_as_large_as_it_may_be() -> None:
    assert (page_count(None), page_start(None)) == (LISTED_MAX, 0)


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("0012", 12), (str(LISTED_MAX), LISTED_MAX)])
def test_a_page_has_as_many_rows_as_asked_for(text: str, count: int) -> None:
    assert page_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "1001", "00001", "-1", "+1", " 1", "1_0", "many", "٣", "9" * 5_000])
def test_no_other_number_of_rows_is_taken(text: str) -> None:
    assert page_count(text) == Refused(Why.INVALID_PARAMETER, f"max: 1 to {LISTED_MAX}")


def test_a_page_begins_where_the_one_before_said() -> None:
    assert (page_start("0"), page_start("9" * 18)) == (0, 10**18 - 1)
    for text in ("", "-1", "9" * 19, "٣", "x"):
        assert page_start(text) == Refused(Why.INVALID_PARAMETER, "from: the value in the previous response")
