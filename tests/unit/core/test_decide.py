"""The door: every command has a rule, decisions change nothing durable, and bounds hold."""

import random

from tests.support.core_log import CoreLog, end, half, message, part, producer
from tests.support.durable_digest import durable_digest

from halfmq.core import commands
from halfmq.core.commands import CopyForward, RequestedVerdict, SendBack, Tick, TrimLog
from halfmq.core.decide import DECIDE, decide, next_deadline_ms, size_bound
from halfmq.model.placement import fits
from halfmq.model.records import BATCH_HEADER_BYTES
from halfmq.model.settings import BrokerSettings


def test_every_command_has_a_rule() -> None:
    assert set(DECIDE) == set(commands.Command.__args__)


def test_a_decision_changes_nothing_durable() -> None:
    log = CoreLog()
    log.session(producer(1, 0))
    reply = log.do(half("T1"))
    log.do(message("M1", DELAY="1"))
    log.later(60_000)
    before = durable_digest(log.state)
    for command in (half("T2"), message("M2"), end("T1", reply), end("T1", reply, RequestedVerdict.ROLLBACK), Tick()):
        assert decide(log.state, command, log.now_ms).records
        assert durable_digest(log.state) == before


def test_a_state_without_work_has_no_deadline() -> None:
    log = CoreLog()
    log.do(message("M1"))
    assert next_deadline_ms(log.state) is None


def test_the_records_of_a_decision_follow_each_other_from_the_logs_end() -> None:
    log = CoreLog()
    end_before = log.state.log_end
    decision = decide(log.state, message("M1"), log.now_ms)
    at = end_before + BATCH_HEADER_BYTES
    for record in decision.records:
        assert record.offset == at
        at += record.size
    assert len(decision.records) == 2


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
