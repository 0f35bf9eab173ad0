"""``halfmq.testing.Broker``: the real broker in a thread; its clock is moved, it ends and starts, and its errors reach the test."""

import asyncio
from pathlib import Path

import pytest
from tests.support.waiting import until, wait_until

from halfmq import App, AsyncClient, Client, ConnectError, Message, Outcome, Retry, UsageError
from halfmq.client import redelivery_timers
from halfmq.testing import Broker

pytestmark = pytest.mark.slow


def left_undecided(client: Client, name: str = "", topic: str = "t") -> str:
    """A transaction whose process has forgotten it."""
    tx = client.begin(name)
    tx.send(topic, "x")
    tx.prepare()
    client._live().verdicts.left_open(tx.id)
    return tx.id


@pytest.fixture
def client(broker: Broker) -> object:
    broker.clear()
    with Client(broker.url, group="g") as client:
        yield client


def test_a_delay_passes_at_once(broker: Broker, client: Client) -> None:
    sent = broker.sent()
    client.send("t", "tomorrow", delay=86_400)
    broker.advance(86_000)
    assert sent("t") == []
    broker.advance(400)
    assert [message.text() for message in sent("t")] == ["tomorrow"]
    for impossible in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="does not go back"):
            broker.advance(impossible)


def test_the_answers_to_checks_that_became_due_are_there_when_advance_returns(broker: Broker, client: Client) -> None:
    asked = []

    def check(tx: object) -> Outcome:
        asked.append(tx)
        return Outcome.UNKNOWN if len(asked) == 1 else Outcome.COMMIT

    client.add_check("order", check)
    sent = broker.sent()
    tx_id = left_undecided(client, "order")
    broker.advance(5)
    assert (len(asked), broker.undecided()) == (0, [("g", tx_id, 0)]), "the grace period is 6 s"
    broker.advance(2)
    assert (len(asked), broker.undecided()) == (1, [("g", tx_id, 1)])
    broker.advance(60)
    assert (len(asked), broker.undecided()) == (2, [])
    assert len(sent("t")) == 1


@pytest.mark.parametrize("sharding_key", [None, "a"])
async def test_retries_are_due_by_the_clock_also_of_messages_that_wait_in_the_process(
    broker: Broker, sharding_key: str | None
) -> None:
    broker.clear()
    app = App(broker.url, group="g")
    attempts: list[bool] = []
    compensated: list[str] = []

    async def on_dead(message: Message) -> None:
        compensated.append(message.text())
        if len(compensated) == 1:
            raise RuntimeError("it is called again, by its consumer")

    @app.consumer("t", group="g", retry=Retry(times=2, delays=(600, 86_400)), on_dead=on_dead)
    async def handle(message: Message) -> None:
        attempts.append(message.is_last_attempt)
        raise RuntimeError("never")

    async with app.run() as client:
        await client.send("t", "x", sharding_key=sharding_key)
        await until(lambda: attempts == [False])
        await _wait_in_turn(broker, 600, attempts)
        await _wait_in_turn(broker, 86_400, attempts)
        await until(lambda: compensated)
        await asyncio.to_thread(broker.advance, 1)
        await until(lambda: len(compensated) == 2)
    assert (attempts, compensated) == ([False, False, True], ["x", "x"])


async def _wait_in_turn(broker: Broker, delay_s: float, attempts: list[bool]) -> None:
    """A message is handled again after ``delay_s``, and not before."""
    known = len(attempts)
    await until(lambda: broker.delayed() or redelivery_timers._pending, "it is handed back, or waits in the process")
    await asyncio.to_thread(broker.advance, delay_s - 60)
    assert len(attempts) == known
    await asyncio.to_thread(broker.advance, 60)
    await until(lambda: len(attempts) > known)


def test_settle_lets_time_pass_until_every_check_is_answered(broker: Broker, client: Client) -> None:
    left = {"a": 0, "b": 5}

    def check(tx: object) -> Outcome:
        name = tx.name  # type: ignore[attr-defined]
        left[name] -= 1
        return Outcome.ROLLBACK if left[name] < 0 else Outcome.UNKNOWN

    for name in left:
        client.add_check(name, check)
        left_undecided(client, name)
    broker.settle()
    assert (broker.undecided(), left) == ([], {"a": -1, "b": -1})
    broker.settle()


def test_settle_says_what_stays_undecided_and_why(broker: Broker, client: Client) -> None:
    client.add_check("never", lambda tx: Outcome.UNKNOWN)
    tx_id = left_undecided(client, "never")
    with pytest.raises(AssertionError, match=rf"1 transactions are undecided:\n  {tx_id} of group g: \d\d checks$"):
        broker.settle()
    client.close()
    with pytest.raises(AssertionError, match="no client of the group is connected"):
        broker.settle(timeout=0.2)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_it_goes_on_with_its_store_at_its_address(broker: Broker, client: Client, how: str) -> None:
    sent = broker.sent()
    client.send("t", "before")
    tx_id = left_undecided(client)
    url = broker.url
    getattr(broker, how)()
    assert not broker.is_running
    with pytest.raises(ConnectError), Client(broker.url, timeout=0.2):
        pass
    with pytest.raises(UsageError, match="not running"):
        broker.advance(1)
    broker.start()
    assert broker.url == url
    client.send("t", "after")
    assert sorted(message.text() for message in sent("t")) == ["after", "before"]
    assert [one.tx_id for one in broker.undecided()] == [tx_id]


def test_a_directory_of_the_test_stays_and_a_temporary_one_goes(tmp_path: Path) -> None:
    with Broker(tmp_path / "store") as mine, Client(mine.url) as client:
        client.send("t", "kept")
    with Broker(tmp_path / "store") as again, Broker() as other:
        assert again.positions()["t"] != ()
        assert "t" not in other.positions()
        gone = other.data
        assert gone.is_dir()
    assert (mine.data / "store.json").exists()
    assert not gone.exists()


def test_settings_are_those_of_the_broker() -> None:
    with Broker(check_immunity_ms=60_000, port=0) as broker, Client(broker.url, group="g") as client:
        client.add_check("n", lambda tx: Outcome.ROLLBACK)
        left_undecided(client, "n")
        broker.advance(30)
        assert len(broker.undecided()) == 1
        broker.advance(31)
        assert broker.undecided() == []
    with pytest.raises(
        UsageError, match=r"Broker got an unexpected option 'check_imunity_ms'; did you mean 'check_immunity_ms'\?"
    ):
        Broker(check_imunity_ms=3)
    with pytest.raises(UsageError, match="check immunity -1"):
        Broker(check_immunity_ms=-1).start()


def test_an_error_in_its_thread_is_raised_in_the_test_once() -> None:
    with Broker() as broker:
        assert broker._loop is not None
        broker._loop.call_soon_threadsafe(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="the broker failed: ZeroDivisionError") as raised:
            wait_until(broker.positions)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        broker.positions()
    broken = Broker()
    broken.start()
    assert broken._broker is not None
    assert broken._loop is not None
    broken._loop.call_soon_threadsafe(broken._broker._fatal, OSError("the disk"))
    with pytest.raises(RuntimeError, match="the disk"):
        broken.close()


def test_what_earlier_tests_have_left_is_forgotten(broker: Broker, client: Client) -> None:
    client.send("t", "x")
    client.send("t", "later", delay=1_000)
    left_undecided(client)
    with client.consumer("consumed", group="readers") as messages:
        client.send("consumed", "1")
        next(iter(messages)).ack()
        broker.clear()
        assert set(broker.positions()) == {"consumed", "%RETRY%readers"}
        client.send("consumed", "2")
        client.send("t", "y")
        assert next(iter(messages)).text() == "2"
    broker.clear()
    assert (broker.positions(), broker.undecided(), broker.delayed()) == ({}, [], 0)
    with client.consumer("t", group="readers", start="earliest") as messages:
        client.send("t", "z")
        assert next(iter(messages)).text() == "z"


def test_settings_are_taken_as_their_types_say(tmp_path: Path) -> None:
    with Broker(hosts=["127.0.0.1"], http_host_names=["localhost"]) as broker, Client(broker.url) as client:
        client.send("t", b"x")
    file = tmp_path / "a"
    config = Broker(audit_log=str(file), tls_key=file, hosts=["::1", "localhost"])._config(tmp_path)
    assert (config.audit_log, config.tls_key, config.hosts) == (file, file, ("::1", "localhost"))
    with pytest.raises(UsageError, match=r"hosts='127.0.0.1' is one text \(hosts=\['127.0.0.1'\]\)"):
        Broker(hosts="127.0.0.1")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_first_block_after_a_restart_succeeds_although_the_client_has_noticed_the_absence(end: str) -> None:
    with Broker() as broker, Client(broker.url, group="g", attempt_timeout=0.2) as client:
        for _ in range(3):
            getattr(broker, end)()
            wait_until(lambda: not client.is_ready)
            with pytest.raises(ConnectError, match="has answered for some time"):
                client.begin()
            broker.start()
            with client.begin() as tx:
                tx.send("t", b"x")
            assert client.is_ready


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_the_same_for_a_client_on_an_event_loop(end: str) -> None:
    with Broker() as broker:
        async with AsyncClient(broker.url, group="g", attempt_timeout=0.2) as client:
            for _ in range(3):
                getattr(broker, end)()
                await until(lambda: not client.is_ready)
                with pytest.raises(ConnectError, match="has answered for some time"):
                    async with client.begin():
                        pytest.fail("it was entered")
                broker.start()
                async with client.begin() as tx:
                    tx.send("t", b"x")
                assert client.is_ready
