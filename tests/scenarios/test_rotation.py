"""A user's secret and the broker's certificate are replaced while clients are at work, and their connections end meanwhile: no request
fails, nothing is lost, and nothing is in the log twice.

Connections end in both ways that a broker has: an administrator changes a user's permissions, and the
broker is started again.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from tests.support.certificates import Authority
from tests.support.served import Served, starting
from tests.support.served_users import audited
from tests.support.tls_users import TlsUsers
from tests.support.waiting import PATIENCE_S, wait_until

from halfmq import AsyncClient, Client, LoginFailed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RIGHTS: Final = {
    "shop": ("send:topic:orders", "send:group:shop"),
    "billing": ("consume:topic:orders", "consume:group:billing-*"),
}
#: Between steps each program of the load does so much more.
MORE: Final = 20
#: A call that waits for a broker that is being started fails after the client's timeouts, which a start on a busy machine exceeds.
PATIENT: Final = {"timeout": PATIENCE_S, "attempt_timeout": PATIENCE_S}


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    with starting(tmp_path_factory) as starts:
        yield starts


class Load:
    """Producers and consumers at work: with the blocking client in threads, and with the asynchronous one."""

    def __init__(self, url: Callable[[str], str]) -> None:
        self._url = url
        #: What each producer has sent and got a receipt for, and what each consumer got, by its name.
        self.done: dict[str, list[str]] = {}
        self.failed: list[str] = []
        self._ending = threading.Event()
        self._sent_all = threading.Event()
        works: dict[str, Callable[[list[str]], None]] = {
            "blocking-send": self._blocking_producer, "blocking-tx": self._blocking_transactions,
            "async-send": lambda done: asyncio.run(self._async_producer(done)),
            "async-tx": lambda done: asyncio.run(self._async_transactions(done)),
            "blocking-get": self._blocking_consumer,
            "async-get": lambda done: asyncio.run(self._async_consumer(done)),
        }  # fmt: skip
        self._threads = {name: threading.Thread(target=self._run, args=(name, work)) for name, work in works.items()}

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def end(self) -> None:
        """Producers first; then the consumers get what they have not yet."""
        self._ending.set()
        self._join(*self._producers)
        with suppress(AssertionError):  # what is missing is found by the test
            wait_until(
                lambda: all(set(self.sent) <= set(self.done[one]) for one in self._consumers), unless=self.problem
            )
        self._sent_all.set()
        self._join(*self._consumers)

    def _join(self, *names: str) -> None:
        for name in names:
            self._threads[name].join(PATIENCE_S)
            assert not self._threads[name].is_alive(), name

    _producers = ("blocking-send", "blocking-tx", "async-send", "async-tx")
    _consumers = ("blocking-get", "async-get")

    @property
    def sent(self) -> list[str]:
        return [text for name in self._producers for text in self.done.get(name, ())]

    def received(self) -> dict[str, set[str]]:
        return {name: set(self.done[name]) for name in self._consumers}

    def problem(self) -> str:
        return "\n".join(self.failed)

    def goes_on(self) -> None:
        """Every program does ``MORE`` from now on."""
        before = {name: len(self.done.get(name, ())) for name in self._threads}
        wait_until(
            lambda: all(len(self.done.get(name, ())) >= count + MORE for name, count in before.items()),
            f"everything goes on after {before}",
            unless=self.problem,
        )

    def _run(self, name: str, work: Callable[[list[str]], None]) -> None:
        try:
            work(self.done.setdefault(name, []))
        except Exception as error:
            self.failed.append(f"{name}: {error!r}")

    def _numbers(self) -> Iterator[int]:
        number = 0
        while not self._ending.wait(0.005):  # real time: a steady load, and processor time for the broker
            yield number
            number += 1

    def _blocking_producer(self, done: list[str]) -> None:
        with Client(self._url("shop"), group="shop", **PATIENT) as mq:
            for number in self._numbers():
                mq.send("orders", text := f"blocking-send {number}")
                done.append(text)

    def _blocking_transactions(self, done: list[str]) -> None:
        with Client(self._url("shop"), group="shop", **PATIENT) as mq:
            for number in self._numbers():
                texts = [f"blocking-tx {number} {half}" for half in "ab"]
                with mq.begin() as tx:
                    for text in texts:
                        tx.send("orders", text)
                assert tx.receipt is not None
                done += texts

    async def _async_producer(self, done: list[str]) -> None:
        async with AsyncClient(self._url("shop"), group="shop", **PATIENT) as mq:
            for number in self._numbers():
                await mq.send("orders", text := f"async-send {number}")
                done.append(text)

    async def _async_transactions(self, done: list[str]) -> None:
        async with AsyncClient(self._url("shop"), group="shop", **PATIENT) as mq:
            for number in self._numbers():
                texts = [f"async-tx {number} {half}" for half in "ab"]
                async with mq.begin() as tx:
                    for text in texts:
                        tx.send("orders", text)
                assert tx.receipt is not None
                done += texts

    def _blocking_consumer(self, done: list[str]) -> None:
        with (
            Client(self._url("billing"), **PATIENT) as mq,
            mq.consumer("orders", group="billing-blocking", start="earliest") as messages,
        ):
            while not self._sent_all.is_set():
                if (message := messages.get(0.5)) is not None:
                    done.append(message.text())
                    message.ack()

    async def _async_consumer(self, done: list[str]) -> None:
        async with (
            AsyncClient(self._url("billing"), **PATIENT) as mq,
            mq.consumer("orders", group="billing-async", start="earliest") as messages,
        ):
            while not self._sent_all.is_set():
                if (message := await messages.get(0.5)) is not None:
                    done.append(message.text())
                    message.ack()


def logins(served: Served, user: str) -> int:
    """How often the user has logged in, of the audit log."""
    return sum((one["event"], one.get("user")) == ("login", user) for one in audited(served))


def test_secrets_and_the_certificate_are_replaced_under_load(
    start: Callable[..., Served], authority: Authority, tmp_path: Path
) -> None:
    site = TlsUsers(tmp_path, authority, start)
    for user, rights in RIGHTS.items():
        site.users.add(user, *rights)
    load = Load(site.users.url)

    def cut() -> None:
        """All connections of the users end; everything goes on through new ones."""
        before = {user: logins(site.served, user) for user in RIGHTS}
        for user, rights in RIGHTS.items():
            site.end_connections(user, *rights)
        load.goes_on()
        wait_until(lambda: all(logins(site.served, user) > count for user, count in before.items()), "new logins")

    with ExitStack() as ends:
        ends.callback(load.end)
        load.start()
        load.goes_on()
        cut()
        new = {user: site.rotate(user, keep_old="1h") for user in RIGHTS}
        cut()  # with the old secrets
        old = {user: site.put_secret(user, file) for user, file in new.items()}
        site.replace_certificate("broker 1")
        cut()  # with the new ones
        assert site.served.stop() == 0
        site.served.start()
        load.goes_on()
        for user in RIGHTS:  # only the new ones are valid from now on
            site.users.run(f"rotate {user} --secret-from {user}")
        site.replace_certificate("broker 2")
        cut()
    assert load.failed == []
    for user in RIGHTS:
        with pytest.raises(LoginFailed), Client(site.users.url(user, old[user])):
            pass
    sent = Counter(load.sent)
    assert set(sent.values()) == {1}
    for name, received in load.received().items():
        assert received == set(sent), name
    assert Counter(everything(site.users.url("alice"), len(sent))) == sent
    assert "Traceback" not in site.served.log.read_text()


def everything(url: str, count: int) -> list[str]:
    """What is in the log, at least ``count`` messages, by a group that nothing has interrupted."""
    found: list[str] = []
    with Client(url) as mq, mq.consumer("orders", group="auditors", start="earliest") as messages:
        for batch in messages.batches(max=1000, wait=1.0):
            found += [message.text() for message in batch]
            batch.ack()
            if not batch and len(found) >= count:
                return found
    raise AssertionError(found)
