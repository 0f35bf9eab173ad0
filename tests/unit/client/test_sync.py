# ruff: noqa: PT012 - what is tested is a block that raises
"""The blocking facade, on the real loop thread with a scripted broker behind it."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.scripted_broker import URL, Network, ScriptedBroker

from halfmq.client.listener import TransactionListener
from halfmq.client.loop_thread import loop_thread
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.sync import Client
from halfmq.client.transaction_block import Transaction
from halfmq.errors import ConnectError, UsageError
from halfmq.wire.remoting.codes import RequestCode


def client(broker: ScriptedBroker | None, **options: Any) -> Client:
    network = Network() if broker is None else broker.network()
    return Client(URL, group="orders", connector=network, **options)


def test_names_are_those_of_the_async_client() -> None:
    from halfmq.client.async_client import AsyncClient

    ours = {name for name in dir(Client) if not name.startswith("_")}
    theirs = {name for name in dir(AsyncClient) if not name.startswith("_")}
    assert theirs - ours == {"clock", "verdicts", "is_open"}
    assert ours <= theirs


def test_send_and_send_many() -> None:
    broker = ScriptedBroker()
    with client(broker) as mq:
        assert mq.send("t", {"id": 7}, key=7).status == "SEND_OK"
        assert len(mq.send_many("t", [b"a", b"b"])) == 2
        assert mq.healthy()
    assert sorted(broker.visible("t")) == [b"a", b"b", b'{"id":7}']
    with pytest.raises(UsageError, match="not open"):
        mq.send("t", b"x")
    assert not mq.healthy()
    mq.close()


def test_no_server_fails_at_once() -> None:
    with pytest.raises(ConnectError), client(None):
        raise AssertionError("not reached")


def test_many_threads_share_one_client() -> None:
    broker = ScriptedBroker()
    with client(broker) as mq:
        threads = [threading.Thread(target=lambda: [mq.send("t", b"x") for _ in range(20)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(broker.visible("t")) == 160


def test_block_commits_and_rolls_back() -> None:
    broker = ScriptedBroker()
    with client(broker) as mq:
        with mq.begin(topic="t") as tx:
            tx.send(b"x")
            tx.send("u", b"y")
        assert tx.receipt is not None
        assert tx.receipt.acknowledged
        with pytest.raises(KeyError), mq.begin() as tx:
            tx.send("t", b"never")
            tx.prepare()
            raise KeyError("order")
    assert (broker.visible("t"), broker.visible("u")) == ([b"x"], [b"y"])


def test_exception_of_a_block_and_of_execute_is_left_to_the_check() -> None:
    class Lost(Listener):
        def execute(self, message: Message, arg: Any) -> Outcome:
            raise arg

    broker = ScriptedBroker()
    with client(broker) as mq:
        mq.add_check("order", lambda _: Outcome.COMMIT)
        with pytest.raises(ConnectionError), mq.begin("order") as tx:
            tx.send("t", b"x")
            tx.prepare()
            raise ConnectionError("COMMIT's answer was lost")
        with pytest.raises(KeyboardInterrupt):
            mq.send_in_transaction("t", b"y", KeyboardInterrupt(), listener=Lost())
        with mq.begin("order") as tx:
            tx.send("t", b"z")
            tx.prepare()
            tx.rollback()
    ends = [end.ext.commit_or_rollback for end in broker.requests(RequestCode.END_TRANSACTION)]
    assert ends == [0, 0, 12]


class Listener(TransactionListener):
    def __init__(self) -> None:
        self.threads: list[str] = []
        self.checked = threading.Event()

    def execute(self, message: Message, arg: Any) -> Outcome:
        self.threads.append(threading.current_thread().name)
        return arg  # type: ignore[no-any-return]

    def check(self, message: Message) -> Outcome:
        self.threads.append(threading.current_thread().name)
        self.checked.set()
        return Outcome.COMMIT


def test_execute_runs_in_the_callers_thread_and_check_in_another() -> None:
    broker = ScriptedBroker()
    listener = Listener()
    with client(broker) as mq:
        assert mq.send_in_transaction("t", b"a", Outcome.COMMIT, listener=listener).verdict == "COMMITTED"
        assert mq.send_in_transaction("t", b"b", Outcome.ROLLBACK, listener=listener).verdict == "ROLLED_BACK"
        assert mq.send_in_transaction("t", b"c", Outcome.UNKNOWN, listener=listener).verdict == "UNDECIDED"
        with pytest.raises(TypeError):
            mq.send_in_transaction("t", b"d", None, listener=listener)
        loop_thread().loop.call_soon_threadsafe(broker.check, 2, "orders")
        assert listener.checked.wait(5)
        mq.send_in_transaction("t", b"e", Outcome.ROLLBACK, listener=listener, delay=timedelta(seconds=2))
        assert b"TIMER_DELAY_SEC\x012\x02" in broker.halves[-1].properties
    assert listener.threads[:4] == [threading.current_thread().name] * 4
    assert listener.threads[4].startswith("halfmq")
    assert sorted(broker.visible("t")) == [b"a", b"c"]


def test_consumer_by_message_and_by_batch() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    for number in range(5):
        broker.append("t", 0, str(number).encode())
    with client(broker) as mq:
        with mq.consumer("t", group="g") as messages:
            got = []
            for message in messages:
                with message.processing():
                    got.append(message.text())
                if len(got) == 2:
                    break
        with mq.consumer("t", group="g") as messages:
            for batch in messages.batches(max=100, wait=0.5):
                got += [message.text() for message in batch]
                batch.ack()
                if not batch:
                    messages.stop()
        assert got == ["0", "1", "2", "3", "4"]
    assert broker.offsets["g", "t", 0] == 5


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """A process that was started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_consumer_outside_its_block_is_told_how_it_is_entered() -> None:
    with client(ScriptedBroker()) as mq:
        messages = mq.consumer("t", group="g")
        for ask in (messages.get, lambda: next(messages), lambda: next(messages.batches())):
            with pytest.raises(UsageError, match=r"not open \(with mq\.consumer"):
                ask()


def test_consumer_whose_closing_is_interrupted_leaves_its_group() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    interrupted: list[int] = []

    def interrupt(peer: Any, request: Any) -> None:
        if not interrupted:
            interrupted.append(1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        asyncio.get_running_loop().call_later(0.2, lambda: peer.send(broker.usual(peer, request)))

    with heeding_interrupts(), client(broker) as mq:
        messages = mq.consumer("t", group="g").__enter__()
        assert messages.get(0.2) is None
        broker.on[RequestCode.UPDATE_CONSUMER_OFFSET] = interrupt
        with pytest.raises(KeyboardInterrupt):
            messages.close()
        deadline = time.monotonic() + 5
        while not broker.requests(RequestCode.UNREGISTER_CLIENT) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert broker.requests(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("batches", [True, False])
def test_interrupted_call_puts_back_what_it_took(early: bool, batches: bool) -> None:
    """The interrupt comes when messages are taken, and the waiting thread does not have them yet. ``early``: the loop hears
    of the interrupt before it takes them."""
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    with heeding_interrupts(), client(broker) as mq, mq.consumer("t", group="g") as messages:
        assert messages.get(0.2) is None
        for number in range(3):
            broker_thread(lambda number=number: broker.append("t", 0, str(number).encode()))
        consumer = messages._consumer
        real = consumer._open_feed()
        while len(real._waiting) < 3:
            time.sleep(0.01)

        def interrupted() -> Message | None:
            real.take = take  # type: ignore[method-assign]
            message = None if early else take()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.1)  # the loop stands still meanwhile
            return take() if early else message

        take = real.take
        real.take = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            next(messages.batches(max=2, wait=5)) if batches else messages.get(5)
        assert [(message := messages.get(5)) and message.text() for _ in range(3)] == ["0", "1", "2"]


def test_what_was_put_back_when_the_consumer_is_stopped_comes_again() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    broker.append("t", 0, b"0")
    with client(broker) as mq:
        with mq.consumer("t", group="g") as messages:
            message = messages.get(5)
            assert message is not None
            messages.stop()
            broker_thread(lambda: messages._consumer.put_back([message]))
            assert messages.get(5) is None
        with mq.consumer("t", group="g") as messages:
            assert messages.get(5) is not None


def broker_thread(work: Callable[[], None]) -> None:
    """Do it where the scripted broker lives."""

    async def there() -> None:
        work()

    loop_thread().run(there())


def test_failed_processing_and_reject_hand_back() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    broker.append("t", 0, b"0")
    broker.append("t", 0, b"1")
    with client(broker) as mq, mq.consumer("t", group="g") as messages:
        first, second = messages.get(5), messages.get(5)
        assert first is not None
        assert second is not None
        with first.processing():
            raise RuntimeError("broken")
        second.reject()
    assert [back.ext.delay_level for back in broker.requests(36)] == [0, -1]


def test_check_functions_survive_into_a_forked_child() -> None:
    broker = ScriptedBroker()
    mq = client(broker)
    mq.add_check("n", lambda tx: Outcome.COMMIT)
    with mq:
        mq.send("t", b"parent")
        child = os.fork()
        if child == 0:
            # The scripted broker lives in this process's copy of memory: what counts is that a new client is made.
            try:
                mq.send("t", b"child")
                bodies = broker.visible("t")
                producers = [body.producer_groups for peer, body in broker.heartbeats.items()]
                os._exit(0 if sorted(bodies) == [b"child", b"parent"] and producers[-1] == ("orders",) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        mq.send("t", b"parent again")
    assert sorted(broker.visible("t")) == [b"parent", b"parent again"]


def test_checks_need_a_group() -> None:
    with pytest.raises(UsageError, match="group"):
        Client(URL).add_check("n", _commit)


def _commit(tx: Transaction) -> Outcome:
    return Outcome.COMMIT
