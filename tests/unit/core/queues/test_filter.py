"""Tag expressions as RocketMQ reads them."""

import pytest

from halfmq.core.queues.filter import FilterRefused, TagFilter, parse_filter
from halfmq.model.ids import java_string_hash


@pytest.mark.parametrize("expression", ["", "*", "  ", " * "])
def test_a_star_or_nothing_wants_everything(expression: str) -> None:
    assert parse_filter(expression) == TagFilter(None)
    assert TagFilter(None).wants(0)


def test_tags_stand_between_bars_and_are_trimmed() -> None:
    wanted = parse_filter(" TagA || TagB||||TagC ")
    assert isinstance(wanted, TagFilter)
    assert all(wanted.wants(java_string_hash(tag)) for tag in ("TagA", "TagB", "TagC"))
    assert not wanted.wants(java_string_hash("TagD"))
    assert not wanted.wants(0), "a message without a tag"


def test_an_expression_without_a_tag_is_refused() -> None:
    refused = parse_filter(" || ")
    assert isinstance(refused, FilterRefused)
    assert not refused.unknown_type


def test_another_type_of_expression_is_refused_by_name() -> None:
    refused = parse_filter("a > 5", "SQL92")
    assert isinstance(refused, FilterRefused)
    assert refused.unknown_type
    assert "SQL92" in refused.text
