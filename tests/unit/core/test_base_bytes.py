"""What a base takes is known at any time without counting, and is never less than what is written."""

from random import Random

import pytest
from tests.support.core_log import CoreLog
from tests.support.invariants import check, recount

from halfmq.core.base import base_payload
from halfmq.core.commands import Command, CommitOffset, DeleteTopic, EnsureGroup, SetGroup, SetProducer, SetTopic
from halfmq.model.settings import BrokerSettings, ProducerSettings


def a_change(rng: Random) -> Command:
    topic, group = f"topic-{rng.randrange(6)}", f"group-{rng.randrange(5)}"
    match rng.randrange(7):
        case 0:
            return EnsureGroup(group)
        case 1:
            labels = rng.choice((None, True, False)), rng.choice((None, "", "FIFO", "TRANSACTION"))
            return SetTopic(topic, queues := rng.randrange(1, 9), queues, 6, None, *labels)
        case 2:
            return DeleteTopic(topic)
        case 3:
            return SetProducer(
                ProducerSettings(group, skip_age_ms=rng.choice((0, 90_000)), set_by="å" * rng.randrange(9))
            )
        case 4:
            held = rng.choice((None, (), tuple(f"topic-{number}" for number in range(rng.randrange(9)))))
            rare = [rng.choice((None, True, False)) for _ in range(3)]
            return SetGroup(group, 3, rng.randrange(3), True, None, held, None, *rare)
        case _:
            return CommitOffset(group, topic, rng.randrange(9), rng.randrange(1 << 40))


@pytest.mark.parametrize("seed", range(4))
def test_the_count_is_that_of_a_recount_after_every_change_restart_and_roll(seed: int) -> None:
    rng = Random(seed)
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20))
    seen = set()
    for step in range(250):
        log.do(a_change(rng))
        log.later(700)
        log.tick()
        if step % 50 == 49:
            log.roll()
            log.restart()
        check(log.state)
        assert len(base_payload(log.state)) <= log.state.derived.base_bytes == recount(log.state).base
        seen.add(log.state.derived.base_bytes)
    assert len(seen) > 30, "it went up and down"
