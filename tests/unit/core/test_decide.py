"""The door: every command has a rule, and bounds hold. That decisions change nothing: ``tests/properties``."""

import random

from tests.support.core_log import CoreLog, end, part

from halfmq.core import commands
from halfmq.core.commands import CopyForward, SendBack, Tick, TrimLog
from halfmq.core.decide import DECIDE, size_bound
from halfmq.model.placement import fits
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
        command = end(f"T{number}", first)
        assert fits(log.state.log_end, False, size_bound(log.state, command), 65_536)
        assert log.do(command).committed


def test_commands_that_find_nothing_need_no_room() -> None:
    log = CoreLog()
    assert size_bound(log.state, end("T1", None, half_index=1, log_offset=1)) == 0
    assert size_bound(log.state, SendBack(1, "CG", 1, 0, -1, "", None)) == 0
    assert size_bound(log.state, Tick()) == 0
    assert size_bound(log.state, CopyForward(0, 10)) == 0
    assert size_bound(log.state, TrimLog(0)) == 16
