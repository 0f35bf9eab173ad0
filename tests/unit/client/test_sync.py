# ruff: noqa: PT012 - what is tested is a block that raises
"""The blocking facade, on the real loop thread with a scripted broker behind it."""

import asyncio
import inspect
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.support.children import fork
from tests.support.scripted_broker import URL, Dice, Network, ScriptedBroker
from tests.support.scripted_server import ScriptedServer
from tests.support.waiting import PATIENCE_S, wait_until

from halfmq.client import sync
from halfmq.client.coordinator import BlockingCoordinator
from halfmq.client.listener import TransactionListener
from halfmq.client.loop_thread import loop_thread
from halfmq.client.message import Message
from halfmq.client.outcome import Outcome
from halfmq.client.sync import Client
from halfmq.client.transaction_block import Transaction
from halfmq.errors import ConnectError, SendTimeout, UsageError
from halfmq.wire.remoting.codes import RequestCode
from halfmq.wire.remoting.header import encode_response
from halfmq.wire.remoting.route import BrokerData, QueueData, Route, encode_route


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
        assert listener.checked.wait(PATIENCE_S)
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
        wait_until(lambda: broker.requests(RequestCode.UNREGISTER_CLIENT), "the consumer to leave")


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
        wait_until(lambda: len(real._waiting) >= 3, "three messages in the feed")

        def interrupted() -> Message | None:
            real.take = take  # type: ignore[method-assign]
            message = None if early else take()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.1)  # real time: the loop stands still while the interrupt arrives
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


@pytest.mark.parametrize(("what", "levels"), [("ack", []), ("retry", [0]), ("reject", [-1])])
def test_what_a_block_has_said_counts_though_it_raises_afterwards(what: str, levels: list[int]) -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    broker.append("t", 0, b"0")
    with client(broker) as mq, mq.consumer("t", group="g") as messages:
        message = messages.get(5)
        assert message is not None
        with message.processing():
            getattr(message, what)()
            raise RuntimeError("afterwards")
    assert [back.ext.delay_level for back in broker.requests(36)] == levels
    assert broker.offsets["g", "t", 0] == 1


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


# --- forks: gunicorn with preload -----------------------------------------------------------------------------------


class Markers:
    """As ``halfmq.sql.MarkerTable``, for who only begins."""

    name = "markers"

    def bind(self, client: Any, session: Any, **options: Any) -> Any:
        return f"block of {client.new_transaction_id()}"

    bind_async = checker = bind


def without_network(mq: Client) -> None:
    """The calls that need no answer of a server."""
    mq.begin()
    mq.transaction(None, markers=Markers())
    mq.new_transaction_id()


class EntropyThatWaits(Dice):
    """Holds up whoever makes a client in a child, until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_child = False
        self.asked, self.go_on = threading.Event(), threading.Event()

    def token(self, nbytes: int) -> bytes:
        if self.is_child:
            self.asked.set()
            assert self.go_on.wait(PATIENCE_S)
        return super().token(nbytes)


def test_threads_of_a_child_begin_while_another_one_reconnects() -> None:
    entropy = EntropyThatWaits()
    with client(ScriptedBroker(), entropy=entropy) as mq:
        mq.add_check("markers", _commit)

        def work() -> list[str]:
            entropy.is_child = True
            failures: list[str] = []

            def attempt(call: Callable[[], object]) -> None:
                try:
                    call()
                except UsageError as error:
                    failures.append(str(error))

            first = threading.Thread(target=attempt, args=(lambda: mq.send("t", b"x"),))
            first.start()
            assert entropy.asked.wait(PATIENCE_S)
            others = [threading.Thread(target=attempt, args=(lambda: without_network(mq),)) for _ in range(4)]
            for thread in others:
                thread.start()
            time.sleep(0.05)  # real time: they find it half made, or wait for it; either is right
            entropy.go_on.set()
            for thread in (first, *others):
                thread.join(PATIENCE_S)
            made = mq._client
            without_network(mq)
            assert mq._client is made  # once, whoever came first
            return failures

        assert fork(work).result() == []


def test_child_whose_first_call_met_a_broker_that_was_down_recovers() -> None:
    broker = ScriptedBroker()
    with client(broker, timeout=0.2) as mq:
        mq.add_check("markers", _commit)

        def work() -> list[Any]:
            parents = set(broker.heartbeats)
            broker.up = False
            with pytest.raises(ConnectError):
                mq.send("t", b"too early")
            without_network(mq)
            assert not mq.healthy()
            broker.start()
            # By itself, so that it is asked about its group's transactions although it sends nothing.
            wait_until(
                lambda: any(
                    "orders" in body.producer_groups
                    for peer, body in list(broker.heartbeats.items())
                    if peer not in parents
                ),
                "the child's heartbeat",
            )
            return [mq.send("t", b"x").status, mq.healthy()]

        assert fork(work).result() == ["SEND_OK", True]


def test_child_that_connects_itself_is_told_when_it_cannot_and_may_go_on() -> None:
    broker = ScriptedBroker()
    with client(broker, timeout=0.2) as mq:

        def work() -> str:
            broker.up = False
            with pytest.raises(ConnectError):
                mq.connect()  # in a post_fork hook
            broker.start()
            return mq.send("t", b"x").status

        assert fork(work).result() == "SEND_OK"


def test_lock_that_another_thread_held_at_the_fork_is_free_in_the_child() -> None:
    with client(ScriptedBroker()) as mq:
        with sync._reopening:
            child = fork(lambda: mq.send("t", b"x").status)
        assert child.result() == "SEND_OK"


def test_what_the_parent_is_in_the_middle_of_is_refused_in_the_child() -> None:
    broker = ScriptedBroker(queues=1)
    broker.topics.add("t")
    broker.append("t", 0, b"0")
    with client(broker) as mq, mq.consumer("t", group="g") as messages:
        message = messages.get(5)
        assert message is not None
        block = mq.begin()
        with block as tx:
            tx.send("t", b"x")
            tx.prepare()

            def work() -> int:
                refused = 0
                for call in (messages.get, message.ack, message.retry, tx.prepare, tx.rollback):
                    with pytest.raises(UsageError, match="forked from"):
                        call()
                    refused += 1
                messages.stop()
                messages.close()
                for error in (RuntimeError(), SystemExit()):
                    block.__exit__(type(error), error, None)  # the child leaves, through the parent's frames
                mq.send("t", b"child")
                return refused if not broker.requests(RequestCode.END_TRANSACTION) else 0

            assert fork(work).result() == 5
        assert tx.receipt is not None
    assert broker.visible("t") == [b"0", b"x"]


def real_server() -> ScriptedServer:
    """One broker behind real sockets; it lives in this process, whoever connects."""
    broker = ScriptedBroker()
    peer: Any = object()

    def answer(request: Any) -> bytes | None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            brokers = (BrokerData("C", "b", {0: f"127.0.0.1:{server.port}"}),)
            return encode_response(
                request, 0, body=encode_route(Route(brokers, (QueueData("b", 1, 1, 6),)), request.version)
            )
        return broker.usual(peer, request)

    server = ScriptedServer(answer)
    return server


def test_broker_sees_the_end_of_a_parent_although_its_child_lives() -> None:
    server = real_server()
    go_on, told = os.pipe()

    def parent() -> None:
        with Client(server.url, group="orders") as mq:
            mq.send("t", b"x")
            os.close(told)

            def child() -> None:
                mq.send("t", b"child")
                os.write(ready, b"x")
                os.read(go_on, 1)  # lives until the test has seen

            heard, ready = os.pipe()
            fork(child)
            os.read(heard, 1)
            mq.send("t", b"parent again")
            os._exit(0)  # as killed

    assert fork(parent).ended() == 0
    wait_until(lambda: len(open_streams(server)) <= 2, "the parent's connections to close")
    assert len(open_streams(server)) == 2  # the child's own: name server and broker
    assert len(server._streams) == 4  # and the parent's, which it had until its end
    os.close(told)
    os.close(go_on)
    server.close()


def open_streams(server: ScriptedServer) -> list[Any]:
    return [stream for stream in server._streams if stream.fileno() >= 0]


def test_forks_under_threads_and_lost_connections_all_work_and_share_no_id() -> None:
    """Eight forks while threads of the parent send on connections that are cut all the time."""
    server = real_server()
    stop = threading.Event()
    ids: list[str] = []

    def give_ids(mq: Client) -> list[str]:
        got = [mq.new_transaction_id(), mq.begin().id]
        while True:
            with suppress(SendTimeout, ConnectError):  # cut three times in a row; anything else is a bug
                return [*got, mq.send("t", b"x").message_id]

    def send(mq: Client) -> None:
        while not stop.is_set():
            ids.extend(give_ids(mq))

    def cut() -> None:
        while not stop.wait(0.003):  # real time: the pace of the cuts
            for stream in open_streams(server):
                with suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)

    with Client(server.url, group="orders") as mq:
        mq.add_check("markers", _commit)
        without_network(mq)
        busy = [threading.Thread(target=send, args=(mq,)) for _ in range(3)] + [threading.Thread(target=cut)]
        for thread in busy:
            thread.start()

        def child() -> list[str]:
            got: list[str] = []
            threads = [threading.Thread(target=lambda: got.extend(give_ids(mq))) for _ in range(3)]
            for thread in threads:
                thread.start()
            without_network(mq)
            for thread in threads:
                thread.join()
            assert len(got) == 9, "a thread failed"
            return got

        children = []
        for _ in range(8):
            children.append(fork(child))
            time.sleep(0.01)  # real time: the pace of the forks
        stop.set()
        for one in children:
            ids.extend(one.result())
        for thread in busy:
            thread.join()
    server.close()
    assert len(ids) > 8 * 9
    assert len(set(ids)) == len(ids)


def test_no_blocking_method_is_documented_with_asynchronous_code() -> None:
    """Most have the documentation of the asynchronous method that they run; who types ``help`` gets code that works there."""
    classes = {one for one in vars(sync).values() if inspect.isclass(one) and one.__module__ == sync.__name__}
    public = {one for one in classes if not one.__name__.startswith("_")} | {BlockingCoordinator}
    methods = [(one, name) for one in public for name in dir(one) if not name.startswith("_")]
    documented = {(one.__name__, name): getattr(one, name).__doc__ or "" for one, name in methods}
    assert len(documented) > 30
    assert [where for where, text in documented.items() if re.search(r"async (with|for)\b|\bawait \w", text)] == []
