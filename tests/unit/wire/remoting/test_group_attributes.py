"""What a group holds, as attributes of RocketMQ's group settings."""

import json

import pytest

from halfmq import limits
from halfmq.wire.remoting.attributes import (
    HoldChange,
    change_body,
    hold_attributes,
    hold_removed,
    hold_set,
    read_hold_change,
)


@pytest.mark.parametrize(
    ("attributes", "change"),
    [
        ({}, HoldChange(None, None)),
        (hold_set(("orders", "stock"), 5), HoldChange(("orders", "stock"), 5)),
        (hold_set(("orders",)), HoldChange(("orders",), None)),
        (hold_attributes(("orders", "%RETRY%C"), 0), HoldChange(("orders", "%RETRY%C"), 0)),
        (hold_attributes((), 7), HoldChange(None, None)),
        (hold_removed(), HoldChange((), None)),
        ({"-hold.topics": "orders", "-hold.ms": ""}, HoldChange((), limits.HOLD_MS)),
        ({"hold.topics": "", "hold.ms": ""}, HoldChange((), limits.HOLD_MS)),  # a tool that drops the signs
    ],
)
def test_changes_are_read_as_they_are_written(attributes: dict[str, str], change: HoldChange) -> None:
    assert read_hold_change(attributes) == change
    assert json.loads(change_body("C", attributes)) == {"groupName": "C", "attributes": attributes}


@pytest.mark.parametrize("attributes", [{"+priority.factor": "1"}, {"+hold.ms": "1.5"}, {"+hold.ms": "-1"}, {"+": ""}])
def test_what_is_unknown_or_no_number_is_refused_by_name(attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"hold\.ms"):
        read_hold_change(attributes)
