"""The door: every command has a rule, and every decision fits. That decisions change nothing: ``tests/properties``."""

import random

from tests.support.core_log import CoreLog, end, part

from halfmq.core import commands
from halfmq.core.commands import CopyForward, SendBack, Tick, TrimLog
from halfmq.core.decide import DECIDE
from halfmq.model.records import Base
from halfmq.model.settings import BrokerSettings


def test_every_command_has_a_rule() -> None:
    assert set(DECIDE) == set(commands.Command.__args__)


def test_after_a_roll_every_commit_fits_behind_the_base() -> None:
    rng = random.Random(5)
    log = CoreLog(BrokerSettings(segment_bytes=65_536))
    for number in range(40):
        halves = rng.randrange(1, 8)
        first = None
        for index in range(halves):
            count = halves if index == halves - 1 else 0
            first = log.do(part(f"T{number}", index, count=count, body=b"x" * rng.randrange(3_500)))
        log.roll()
        bases = len(log.of(Base))
        assert log.do(end(f"T{number}", first)).committed
        assert len(log.of(Base)) == bases


def test_commands_that_find_nothing_need_no_room() -> None:
    log = CoreLog()
    assert log.decide(end("T1", None, half_index=1, log_offset=1)).records == ()
    assert log.decide(SendBack(1, "CG", 1, 0, -1, "", None)).records == ()
    assert log.decide(Tick()).records == ()
    assert log.decide(CopyForward(0, 10)).records == ()
    assert log.decide(TrimLog(0)).records == ()
