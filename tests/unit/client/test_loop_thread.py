"""One loop thread per process."""

import asyncio
import os
import threading
from typing import Any

import pytest
from tests.support.waiting import PATIENCE_S, wait_until

from halfmq.client import loop_thread as module
from halfmq.client.loop_thread import LoopThread, loop_thread
from halfmq.errors import UsageError


def test_it_is_one_for_all_threads() -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(loop_thread())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1


def test_results_and_exceptions_come_back() -> None:
    async def add() -> int:
        await asyncio.sleep(0)
        return 3

    async def fail() -> None:
        raise KeyError("x")

    assert loop_thread().run(add()) == 3
    with pytest.raises(KeyError):
        loop_thread().run(fail())


def test_waiting_for_itself_is_refused() -> None:
    async def nothing() -> None: ...

    async def inside() -> None:
        loop_thread().run(nothing())

    with pytest.raises(UsageError, match="AsyncClient"):
        loop_thread().run(inside())


async def _leave() -> None:
    raise SystemExit  # as an application's check might


async def _stop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(3_600)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [_leave, _stop])
def test_calls_are_refused_once_the_thread_has_ended_also_those_that_wait(end: Any) -> None:
    thread = LoopThread()
    thread.start()
    failures: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            thread.run(asyncio.sleep(3_600))
        except BaseException as error:
            failures.append(error)

    waiting = threading.Thread(target=wait_for_ever, daemon=True)
    waiting.start()
    wait_until(lambda: asyncio.all_tasks(thread.loop), "the call that waits")
    with pytest.raises((UsageError, SystemExit)):
        thread.run(end())
    waiting.join(PATIENCE_S)
    assert [type(one) for one in failures] == [UsageError]
    thread.loop.close()
    for call in (lambda: thread.run(asyncio.sleep(0)), lambda: thread.post(print)):
        with pytest.raises(UsageError, match="has ended"):
            call()


def test_timeout_of_the_work_itself_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)

    async def times_out() -> None:
        await asyncio.sleep(0.1)  # real time: longer than one look
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        loop_thread().run(times_out())


def test_interrupt_cancels_the_work() -> None:
    ended = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    import signal

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            loop_thread().run(slow())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended.wait(PATIENCE_S)


def test_signal_handler_finds_the_loop_while_its_thread_looks_for_it() -> None:
    found = loop_thread()
    again: list[object] = []
    with module._lock:  # as if the handler came in the middle of loop_thread()
        asking = threading.Thread(target=lambda: again.append(loop_thread()), daemon=True)
        asking.start()
        asking.join(PATIENCE_S)
        assert again == [found]


def test_forked_child_has_a_loop_of_its_own() -> None:
    parents = loop_thread()

    async def process() -> int:
        return os.getpid()

    assert parents.run(process()) == os.getpid()
    child = os.fork()
    if child == 0:
        mine = loop_thread()
        os._exit(0 if mine is not parents and mine.run(process()) == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parents.run(process()) == os.getpid()
