"""One sync for everything that was written before it began; one thread, and none of its work is lost at the end."""

import threading

from tests.support.waiting import PATIENCE_S

from halfmq.store.group_flush import GroupFlush


class SlowDisk:
    """A job that waits until it is let go, and remembers."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.threads: set[str] = set()
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)

    def job(self, position: int) -> None:
        self.begun.release()
        assert self.let_go.acquire(timeout=PATIENCE_S)
        self.positions.append(position)
        self.threads.add(threading.current_thread().name)


def test_what_is_asked_for_during_a_sync_is_covered_by_the_next_one() -> None:
    disk = SlowDisk()
    flush = GroupFlush(disk.job)
    flush.start()
    flush.request(8)
    assert disk.begun.acquire(timeout=PATIENCE_S)
    for position in (16, 24, 32):
        flush.request(position)
    disk.let_go.release(2)
    flush.close()
    assert disk.positions == [8, 32]
    assert disk.threads == {"halfmq-sync"}


def test_closing_without_work_or_twice_is_harmless() -> None:
    before = threading.active_count()
    done: list[int] = []
    flush = GroupFlush(done.append)
    flush.start()
    flush.close()
    flush.close()
    GroupFlush(done.append).close()
    assert done == []
    assert threading.active_count() == before


def test_the_job_may_close_it() -> None:
    done = threading.Event()

    def job(position: int) -> None:
        flush.close()
        done.set()

    flush = GroupFlush(job)
    flush.start()
    flush.request(8)
    assert done.wait(PATIENCE_S)


def test_request_does_not_wait() -> None:
    disk = SlowDisk()
    flush = GroupFlush(disk.job)
    flush.start()
    for position in range(1_000):  # if it waited, it would for ever: the sync is let go behind this loop
        flush.request(position)
    disk.let_go.release(1_001)
    flush.close()
    assert disk.positions[-1] == 999
