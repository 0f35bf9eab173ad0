"""The digest sees what is durable and nothing else."""

from itertools import pairwise

from tests.support.core_log import CoreLog, consumer, end, half, message, producer
from tests.support.durable_digest import durable_digest

from halfmq.core.session import DiskSpace, Published


def test_session_state_is_not_in_it() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.do(message("M1", connection=4))
    before = durable_digest(log.state)
    for event in (producer(1, 0), consumer(2, 0), DiskSpace(True), Published(9, 9)):
        log.session(event)
    assert durable_digest(log.state) == before


def test_everything_that_a_record_changes_is_in_it() -> None:
    log = CoreLog()
    digests = [durable_digest(log.state)]
    reply = log.do(half("T1"))
    for step in (
        lambda: log.do(message("M1")),
        lambda: log.do(message("M2", DELAY="1")),
        lambda: log.do(end("T1", reply)),
        lambda: log.run_to(log.now_ms + 1_000),
        log.roll,
    ):
        digests.append(durable_digest(log.state))
        step()
    digests.append(durable_digest(log.state))
    without_end = [
        {key: value for key, value in digest.items() if key not in ("log_end", "batch_time_ms")} for digest in digests
    ]
    assert all(earlier != later for earlier, later in pairwise(without_end))
