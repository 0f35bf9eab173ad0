"""Metrics of a relay, and its port of HTTP, over rows and a target in memory; ``tests/unit/cli/test_relay.py`` has a process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.waiting import PATIENCE_S, soon, until
from tests.unit.relay.targets import batch, row
from tests.unit.relay.test_relay import Rows, Target

from halfmq.broker.metrics.families import COUNTER, PROCESS
from halfmq.errors import ConnectError, PortTaken
from halfmq.processes import http_port
from halfmq.processes.http_port import HttpPort
from halfmq.relay import metrics
from halfmq.relay.metrics import FAMILIES, RelayMetrics
from halfmq.relay.publisher import Batch, Published
from halfmq.relay.relay import Relay
from halfmq.relay.rows import DatabaseAway, Figures, Lease, Work
from halfmq.sql.rules.outbox import Delivery

STATES = [(one, one.shown) for one in Delivery]


class Counted(Rows):
    """An outbox whose figures the test says; None: the database is away."""

    shown: Figures | None = Figures({"W": 5, "A": 2}, 61.5, 5, 7)
    asked = 0

    async def figures(self) -> Figures:
        self.asked += 1
        if self.shown is None:
            raise DatabaseAway("the database is away")
        return self.shown


def work(*seqs: int, is_unfinished: bool = False) -> Callable[[], Work]:
    return lambda: Work(Lease(0, "token"), batch([row("t")._replace(seq=seq) for seq in seqs]), is_unfinished)


async def scraped(of: RelayMetrics) -> Callable[..., float | None]:
    """Returns what gives the value of a series; None: there is none."""
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families((await of.text()).decode())
        for sample in family.samples
    }
    return lambda name, **labels: found.get((name, tuple(sorted(labels.items()))))


ONE = {"outbox": "rows", "target": "target"}


async def test_every_family_is_there_with_its_type_and_no_other() -> None:
    text = (await RelayMetrics([Relay(Counted(), Target())], STATES).text()).decode()
    types = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    assert types == {name: family.kind for name, family in FAMILIES.items()} | {
        name: types[name] for name in types if name in PROCESS
    }
    for name, family in FAMILIES.items():
        assert name.startswith(("halfmq_relay_", "halfmq_outbox_")), name
        assert name.endswith("_total") == (family.kind == COUNTER), name


async def test_what_became_of_messages_is_counted() -> None:
    rows, target = Counted(work(1, 2), work(3, 4, 5), work(6), work(7, 8, is_unfinished=True)), Target()
    answers = iter([
        Published(frozenset({1, 2})),
        Published(frozenset({3}), {4: "too large", 5: "no such topic"}),
        Published(frozenset(), unavailable="away"),
    ])  # fmt: skip

    async def publish(_batch: Batch) -> Published:
        return next(answers)

    target.publish = publish  # type: ignore[method-assign]
    relay = Relay(rows, target, workers=1)
    of = RelayMetrics([relay], STATES)
    value = await scraped(of)
    assert value("halfmq_relay_published_messages_total", **ONE) == 0
    assert value("halfmq_relay_last_success_timestamp_seconds", **ONE) == 0
    async with relay.running():
        await until(lambda: len(rows.finished) == 4)
        await until(lambda: not relay.why_not())
        value = await scraped(of)
    assert value("halfmq_relay_published_messages_total", **ONE) == 3
    assert value("halfmq_relay_refused_messages_total", **ONE) == 2
    assert value("halfmq_relay_failed_batches_total", **ONE) == 1
    assert value("halfmq_relay_retried_messages_total", **ONE) == 2
    assert (value("halfmq_relay_last_success_timestamp_seconds", **ONE) or 0) > 1_700_000_000
    assert value("halfmq_relay_ready", **ONE) == 1


async def test_the_outbox_is_shown_by_state() -> None:
    value = await scraped(RelayMetrics([Relay(Counted(), Target())], STATES))
    shown = {name: value("halfmq_outbox_messages", outbox="rows", state=name) for _, name in STATES}
    assert shown == {**dict.fromkeys(shown, 0), "waiting": 5, "set-aside": 2}
    assert value("halfmq_outbox_waiting_messages", outbox="rows") == 7
    assert value("halfmq_outbox_oldest_seconds", outbox="rows") == 61.5
    assert value("halfmq_outbox_shown", outbox="rows") == 1


async def test_scrapes_soon_after_each_other_read_the_database_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Counted()
    of = RelayMetrics([Relay(rows, Target())], STATES)
    await asyncio.gather(*[of.text() for _ in range(5)])
    await of.text()
    assert rows.asked == 1
    monkeypatch.setattr(metrics, "FIGURES_S", 0.0)
    await of.text()
    assert rows.asked == 2


@pytest.mark.parametrize("how", ["error", "bug", "silence"])
async def test_a_database_that_does_not_answer_leaves_only_its_series_out(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "DATABASE_S", 0.01)
    rows = Counted()
    never = asyncio.Event()

    async def figures() -> Figures:
        rows.asked += 1
        if how == "bug":
            raise ZeroDivisionError
        if how == "error":
            raise DatabaseAway("away")
        await never.wait()
        return Figures({}, None, 0, 0)

    monkeypatch.setattr(rows, "figures", figures)
    of = RelayMetrics([Relay(rows, Target())], STATES)
    for _ in range(3):
        value = await scraped(of)
        assert value("halfmq_outbox_shown", outbox="rows") == 0
        assert value("halfmq_outbox_waiting_messages", outbox="rows") is None
        assert value("halfmq_relay_published_messages_total", **ONE) == 0
    assert rows.asked == 1, "one query at a time"
    never.set()
    await asyncio.sleep(0)


async def test_two_relays_of_one_outbox_are_one_series() -> None:
    relays = [Relay(Counted(), Target()) for _ in range(2)]
    relays[0].confirmed, relays[1].confirmed = 3, 4
    value = await scraped(RelayMetrics(relays, STATES))
    assert value("halfmq_relay_published_messages_total", **ONE) == 7
    assert value("halfmq_outbox_waiting_messages", outbox="rows") == 7


# --- the port


@asynccontextmanager
async def serving(relay: Relay) -> AsyncIterator[int]:
    server = HttpPort(RelayMetrics([relay], STATES).paths(), "--http-port")
    port = (await server.start("127.0.0.1", 0)).port
    try:
        yield port
    finally:
        await server.close()


async def asked(port: int, request: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """(status, text after the headers) of the answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return int(head.split(" ")[1]), body


async def test_paths() -> None:
    relay = Relay(Counted(), Target())
    async with relay.running(), serving(relay) as port:
        status, text = await asked(port, "GET /metrics")
        assert (status, 'halfmq_outbox_waiting_messages{outbox="rows"} 7.0' in text) == (200, True)
        assert await asked(port, "GET /healthz") == (200, "ok\n")
        assert await asked(port, "GET /readyz?verbose") == (200, "ok\n")
        assert await asked(port, "HEAD /metrics") == (200, "")
        assert await asked(port, "POST /metrics") == (405, "GET and HEAD only\n")
        assert await asked(port, "GET /") == (404, "no such resource; there are /metrics, /healthz, /readyz\n")
        assert (await asked(port, "nonsense"))[0] == 400
        for host in ("localhost", "10.0.0.1:80", "[::1]:80"):
            assert (await asked(port, "GET /healthz", host))[0] == 200
        assert (await asked(port, "GET /metrics", "evil.example"))[0] == 421


async def test_a_relay_that_waits_is_alive_and_not_ready() -> None:
    target = Target()

    async def away() -> None:
        raise ConnectError("the target is\naway")

    opens = target.open
    target.open = away  # type: ignore[method-assign]
    relay = Relay(Counted(), target)
    async with serving(relay) as port:
        assert await asked(port, "GET /readyz") == (503, "relay of rows to target: it begins\n")
        task = asyncio.create_task(relay.run(stop := asyncio.Event()))
        await until(lambda: relay.why_not() != "it begins")
        assert await asked(port, "GET /readyz") == (503, "relay of rows to target: the target is\\naway\n")
        assert 'halfmq_relay_ready{outbox="rows",target="target"} 0.0' in (await asked(port, "GET /metrics"))[1]
        assert await asked(port, "GET /healthz") == (200, "ok\n")
        target.open = opens  # type: ignore[method-assign]
        await until(lambda: not relay.why_not())
        assert await asked(port, "GET /readyz") == (200, "ok\n")
        stop.set()
        await task


async def test_a_connection_that_does_not_end_its_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "REQUEST_S", 0.05)
    async with serving(Relay(Counted(), Target())) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        with suppress(ConnectionError):
            assert await soon(reader.read()) == b""
        writer.close()


async def test_a_probe_is_answered_though_others_leave_their_requests_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_port, "REQUEST_S", 10 * PATIENCE_S)
    monkeypatch.setattr(http_port, "CONNECTIONS_MAX", 2)
    server = HttpPort(RelayMetrics([Relay(Counted(), Target())], STATES).paths(), "--http-port")
    port = (await server.start("127.0.0.1", 0)).port
    held = []
    for count in (1, 2):
        held.append(await asyncio.open_connection("127.0.0.1", port))
        held[-1][1].write(b"GET /metrics HTTP/1.1\r\n")
        await until(lambda count=count: len(server._connections) == count)  # type: ignore[misc]
    assert (await asked(port, "GET /healthz"))[0] == 200
    with suppress(ConnectionError):
        assert await soon(held[0][0].read()) == b"", "the oldest was ended"
    await until(lambda: len(server._connections) == 1)
    for _, writer in held:
        writer.close()
    await server.close()


async def test_a_taken_port_is_said() -> None:
    async with serving(Relay(Counted(), Target())) as port:
        server = HttpPort(RelayMetrics([], STATES).paths(), "--http-port")
        remedy = r"\(stop the other process, or choose --http-port \(0: any free one\)\)"
        with pytest.raises(PortTaken, match=rf"cannot listen for HTTP on 127.0.0.1:{port}: .* {remedy}$"):
            await server.start("127.0.0.1", port)
