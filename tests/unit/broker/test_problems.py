"""Each kind of problem is a line of the log once, and again after ten minutes."""

import logging

import pytest

from halfmq.broker.problems import Problems
from halfmq.core.commands import EnsureGroup
from halfmq.core.engine import DecisionFailed, DelayedNotShown, FitsNowhere, NoNextSegment, NotCopied, Problem
from halfmq.errors import InvariantViolated
from halfmq.runtime.log_throttle import REST_S

_GROUP = EnsureGroup("G")


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (DecisionFailed(_GROUP, KeyError("a bug")), "decision failed on EnsureGroup; nothing was changed"),
        (FitsNowhere(_GROUP, InvariantViolated("x")), "EnsureGroup failed; nothing was changed"),
        (NotCopied(_GROUP, 77, "it stays undecided"), "it stays undecided"),
    ],
)
def test_once_and_then_now_and_then(problem: Problem, says: str, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    problems = Problems(lambda: now[0], 65_536)
    for _ in range(3):
        problems.tell(problem)
    assert sum(says in line for line in caplog.messages) == len(caplog.messages) == 1
    now[0] += REST_S
    problems.tell(problem)
    assert len(caplog.messages) == 2


def test_no_room_is_said_each_time_that_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    problems = Problems(lambda: 0.0, 65_536)
    for _ in range(2):
        problems.tell(NoNextSegment("no room"))
    assert len(caplog.messages) == 2


def test_delayed_messages_are_said_for_each_segment_and_then_in_all(caplog: pytest.LogCaptureFixture) -> None:
    problems = Problems(lambda: 0.0, 65_536)
    problems.tell(DelayedNotShown(((100, "damaged"), (200, "damaged"), (70_000, "damaged")), more=True))
    problems.tell(DelayedNotShown(((300, "damaged"),), more=False))
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "delayed messages will not be delivered before the next start, 2 of one segment so far",
        "delayed messages will not be delivered before the next start, 1 of one segment so far",
        "1 more delayed messages of such segments will not be delivered before the next start",
    ]
    assert caplog.messages[-1].endswith("4 in all")
