"""Tag expressions as RocketMQ reads them."""

import tracemalloc

import pytest

from halfmq import limits
from halfmq.broker.services.tag_filter import TagFilter, parse_filter
from halfmq.core.decision import Refused, Why
from halfmq.model.ids import java_string_hash


@pytest.mark.parametrize("expression", ["", "*", "  ", " * "])
def test_a_star_or_nothing_wants_everything(expression: str) -> None:
    assert parse_filter(expression) == TagFilter(None)


def test_tags_stand_between_bars_and_are_trimmed() -> None:
    wanted = parse_filter(" TagA || TagB||||TagC ")
    assert isinstance(wanted, TagFilter)
    assert wanted.tag_hashes == {java_string_hash(tag) for tag in ("TagA", "TagB", "TagC")}, (
        "and not 0, of a message without a tag"
    )


def test_an_expression_without_a_tag_is_refused() -> None:
    refused = parse_filter(" || ")
    assert isinstance(refused, Refused)
    assert refused.why is Why.SUBSCRIPTION_PARSE_FAILED


def test_another_type_of_expression_is_refused_by_name() -> None:
    refused = parse_filter("a > 5", "SQL92")
    assert isinstance(refused, Refused)
    assert refused.why is Why.FILTER_NOT_SUPPORTED
    assert "SQL92" in refused.text


def test_an_expression_longer_than_the_bound_is_refused_and_says_so() -> None:
    refused = parse_filter("a" * (limits.EXPRESSION_CHARS_MAX + 1))
    assert isinstance(refused, Refused)
    assert refused.why is Why.SUBSCRIPTION_PARSE_FAILED
    assert str(limits.EXPRESSION_CHARS_MAX) in refused.text
    assert isinstance(parse_filter("a" * limits.EXPRESSION_CHARS_MAX), TagFilter)


@pytest.mark.parametrize("characters", [1_000, 100_000])
def test_what_is_remembered_of_long_expressions_has_a_bound(characters: int) -> None:
    """Counted in bytes: 100 different expressions, of one long tag each, leave those of a few."""
    parse_filter("warm" * 100)
    tracemalloc.start()
    try:
        for number in range(100):
            parse_filter(f"{number:06d}".ljust(characters, "x"))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 70_000


def test_refusals_do_not_repeat_what_was_sent() -> None:
    for refused in (parse_filter("x", "T" * 100_000), parse_filter("|" * 10_000)):
        assert isinstance(refused, Refused)
        assert len(refused.text) < 300
