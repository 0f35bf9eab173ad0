"""`halfmq relay` as a process, on a real broker and database: until SIGTERM, or until everything is published."""

import asyncio
import logging
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.served import Served
from tests.support.shop_module import shop_module
from tests.support.waiting import PATIENCE_S, until, wait_until

from halfmq import Client
from halfmq.cli.exit_status import ExitStatus
from halfmq.processes import relays
from halfmq.relay.rows import DatabaseAway, Figures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("relay")
    served = Served(work / "data", work / "broker.log", "--durability", "memory")
    served.start()
    yield served
    served.stop()


def send(shop: Any, *bodies: str, topic: str = "orders", key: str = "k") -> list[str]:
    with shop.sessions() as session, session.begin():
        return [shop.outbox.send(session, topic, body, sharding_key=key) for body in bodies]


def states(shop: Any) -> list[str]:
    with shop.sessions() as session:
        table = shop.outbox.table
        return [row.delivery for row in session.connection().execute(table.select().order_by(table.c.seq))]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "halfmq", "relay", *arguments]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def received(broker: Served, topic: str, count: int) -> list[str]:
    with Client(broker.url) as client, client.consumer(topic, group=f"reads-{topic}") as messages:
        found = [messages.get(PATIENCE_S) for _ in range(count)]
        assert messages.get(0.2) is None
        return [message.text() for message in found if message is not None]


@pytest.mark.parametrize("name", ["app", "asynchronous"])
def test_once_publishes_everything_and_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Served, name: str
) -> None:
    shop = shop_module(monkeypatch, tmp_path, broker.url)
    topic = f"once-{name}"
    send(shop, "1", "2", "3", topic=topic)
    with shop.sessions() as session, session.begin():
        shop.outbox.send(session, topic, "held", hold=True)
        shop.outbox.send(session, topic, "later", delay=3600)
    done = run(f"shop:{name}", "--once", "--workers", "2")
    assert done.returncode == ExitStatus.SUCCESS, done.stderr
    assert received(broker, topic, 3) == ["1", "2", "3"]
    assert states(shop) == ["H", "S"]
    assert "3 published, 0 waiting, oldest -, 0 set aside" in done.stderr
    assert done.stdout == ""


def test_once_says_by_its_status_that_messages_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Served
) -> None:
    shop = shop_module(monkeypatch, tmp_path, broker.url)
    (tmp_path / "strict.py").write_text("import shop\napp = shop.without\napp.relay(shop.outbox, attempts=1)\n")
    refused_id, _ = send(shop, "1", "2", topic="RMQ_SYS_TRANS_HALF_TOPIC")  # which nobody may write
    send(shop, "3", topic="strict", key="other")
    done = run("strict:app", "--once")
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    assert states(shop) == ["A", "B"]
    assert received(broker, "strict", 1) == ["3"]
    assert "1 set aside" in done.stderr
    assert f"refuses message {refused_id} of topic RMQ_SYS_TRANS_HALF_TOPIC: " in done.stderr


def test_it_runs_until_it_is_told_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Served) -> None:
    shop = shop_module(monkeypatch, tmp_path, broker.url)
    for number in (signal.SIGTERM, signal.SIGINT):
        log = tmp_path / "relay.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command("shop:app"), stderr=output)
        try:
            wait_until(lambda log=log: "begins" in log.read_text(), unless=process.poll)
            send(shop, "x", topic="until")
            wait_until(lambda: not states(shop), "it is published", unless=process.poll)
        finally:
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == ExitStatus.SUCCESS
        assert "stopped: 1 published" in log.read_text()
        with shop.sessions() as session:
            assert shop.outbox.operations.status(session.connection()).lanes == [], "it has released its lanes"


def test_an_address_for_http_without_a_port_is_refused() -> None:
    refused = run("shop:app", "--http-host", "0.0.0.0")
    assert (refused.returncode, "--http-host without --http-port" in refused.stderr) == (ExitStatus.USAGE, True)


def test_it_serves_metrics_and_probes_on_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Served
) -> None:
    shop = shop_module(monkeypatch, tmp_path, broker.url)
    log = tmp_path / "relay.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command("shop:app", "--http-port", "0"), stderr=output)
    try:
        wait_until(lambda: "begins" in log.read_text(), unless=process.poll)
        (url,) = re.findall(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", log.read_text())

        def asked(path: str) -> str:
            with urllib.request.urlopen(url + path, timeout=PATIENCE_S) as response:
                return str(response.read().decode())

        send(shop, "x", topic="metrics")
        wait_until(
            lambda: re.search(r"^halfmq_relay_published_messages_total\{.*\} 1\.0$", asked("/metrics"), re.MULTILINE),
            "it is published and counted",
            unless=process.poll,
        )
        assert re.search(r'^halfmq_outbox_shown\{outbox="mq_outbox in .*"\} 1\.0$', asked("/metrics"), re.MULTILINE)
        assert asked("/healthz") == asked("/readyz") == "ok\n"
        taken = run("shop:app", "--http-port", url.rpartition(":")[2])
        assert (taken.returncode, "Traceback" in taken.stderr) == (ExitStatus.FAILED, False), taken.stderr
        assert "cannot listen for HTTP on 127.0.0.1:" in taken.stderr
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == ExitStatus.SUCCESS


def test_it_waits_for_a_target_that_is_away_and_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop_module(monkeypatch, tmp_path)
    log = tmp_path / "relay.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command("shop:app", "--once"), stderr=output)
    wait_until(lambda: "waits, and tries again: no connection" in log.read_text(), unless=process.poll)
    process.terminate()
    assert process.wait(PATIENCE_S) == ExitStatus.FAILED, "a script must not take it for published"
    assert "stopped before everything was published: 0 published" in log.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("shop:without", ExitStatus.USAGE, "has registered no relay: call app.relay(outbox)"),
        ("shop:wrong", ExitStatus.USAGE, "lease=-1"),
        ("shop:markers", ExitStatus.USAGE, "shop:markers is not a halfmq.App, but of type MarkerTable"),
        ("shop:app", ExitStatus.FAILED, "there is no table mq_outbox in sqlite:///"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--once",)], ids=["for ever", "once"])
def test_what_is_wrong_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broker: Served,
    target: str,
    status: ExitStatus,
    said: str,
    options: tuple[str, ...],
) -> None:
    shop_module(monkeypatch, tmp_path, broker.url, tables=False)
    done = run(target, *options)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


class Reported:
    """A relay whose figures the test says."""

    name = "relay of mq_outbox to there"
    refused = 0

    def __init__(self) -> None:
        self.confirmed = 0
        self.asked = 0

    async def opened(self) -> None:
        pass

    async def figures(self) -> Figures:
        self.asked += 1
        self.confirmed += 10
        if self.asked == 2:
            raise DatabaseAway("the database is away")
        return Figures({"W": 5, "A": 2}, 61.0, 5, 7)


async def test_every_minute_it_says_what_was_published_and_what_waits(caplog: pytest.LogCaptureFixture) -> None:

    caplog.set_level(logging.INFO, "halfmq.relay")
    one = Reported()
    task = asyncio.create_task(relays._report(one, 0.001))  # type: ignore[arg-type]
    await until(lambda: one.asked > 3)
    task.cancel()
    assert caplog.records[0].levelno == logging.WARNING, "somebody is needed"
    said = [record.getMessage() for record in caplog.records][:3]
    assert said == [
        "relay of mq_outbox to there: 10 published, 7 waiting, oldest 61 s, 2 set aside (`halfmq outbox list` says why)",
        "relay of mq_outbox to there: the database is away",
        "relay of mq_outbox to there: 20 published, 7 waiting, oldest 61 s, 2 set aside (`halfmq outbox list` says why)",
    ]
