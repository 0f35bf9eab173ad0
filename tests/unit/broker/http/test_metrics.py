"""``/metrics`` of a real broker, read by the parser of Prometheus' library."""

import asyncio
import http.client
import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import Calls, Running, ShiftedClock, serving
from tests.support.users import serving_users
from tests.support.waiting import until

from halfmq.broker.http import metrics
from halfmq.broker.metrics import scrape
from halfmq.broker.metrics.counts import TIMED_ONE_IN
from halfmq.broker.metrics.families import COUNTER, FAMILIES, HISTOGRAM, NODE_LABELS, PROCESS, ROCKETMQ
from halfmq.broker.remoting.gateway import CountedConnection
from halfmq.core.session import DiskSpace, Heartbeat
from halfmq.relay.metrics import FAMILIES as RELAY
from halfmq.spark.options import parse_options
from halfmq.spark.source import HalfmqStreamReader
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.header import Request

#: The value of each series, by its name and its labels without those of the node.
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def text_of(running: Running) -> str:
    def ask() -> str:
        client = http.client.HTTPConnection("127.0.0.1", running.ports.http or 0, timeout=10)
        client.request("GET", "/metrics")
        response = client.getresponse()
        text = response.read().decode()
        client.close()
        assert (response.status, response.headers["Content-Type"][:25]) == (200, "text/plain; version=0.0.4"), text
        return text

    return await asyncio.to_thread(ask)


def series_in(text: str) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name not in NODE_LABELS))
            assert (sample.name, labels) not in found, "one series is there twice"
            found[sample.name, labels] = sample.value
    return found


async def scraped(running: Running) -> Callable[..., float | None]:
    """Returns what gives the value of a series; None: there is none."""
    series = series_in(await text_of(running))
    return lambda name, **labels: series.get((name, tuple(sorted(labels.items()))))


async def test_every_family_is_there_with_its_type_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        text = await text_of(running)
    types = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    assert {name: kind for name, kind in types.items() if name not in PROCESS} == {
        name: family.kind for name, family in FAMILIES.items()
    }
    assert set(types) - set(FAMILIES) == set(PROCESS)
    for name, family in FAMILIES.items():
        assert name.startswith((ROCKETMQ, "halfmq_")), name
        assert name.endswith("_total") == (family.kind == COUNTER), name


async def test_a_transaction_is_counted_from_half_to_verdict(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        committed = await client.half("orders", b"x", unique="A" * 32)
        rolled_back = await client.half("orders", b"x", unique="B" * 32)
        await client.half("orders", b"x", unique="C" * 32)
        assert (await client.end(committed, "A" * 32, 8)).code == 0
        assert (await client.end(rolled_back, "B" * 32, 12)).code == 0
        assert (await client.end(committed, "A" * 32, 12)).code != 0
        value = await scraped(running)
        assert value("halfmq_undecided_transactions", producer_group="P") == 1
        assert value("halfmq_undecided_without_producer", producer_group="P") == 1
        assert value("rocketmq_half_messages", topic="orders") == 1
        assert value("rocketmq_messages_in_total", topic="orders") == 1
        assert value("rocketmq_commit_messages_total", topic="orders") == 1
        assert value("rocketmq_rollback_messages_total", topic="orders") == 1
        assert value("halfmq_verdicts_total", decided_by="producer", outcome="commit") == 1
        assert value("halfmq_verdicts_total", decided_by="producer", outcome="rollback") == 1
        assert value("halfmq_requests_total", request="SEND_MESSAGE_V2", outcome="SUCCESS") == 3
        assert value("halfmq_requests_total", request="END_TRANSACTION", outcome="SUCCESS") == 2
        assert value("halfmq_requests_total", request="END_TRANSACTION", outcome="ILLEGAL_OPERATION") == 1
        assert value("halfmq_ready") == value("halfmq_state_shown") == 1


async def test_requests_are_timed_each_of_rare_ones_and_some_of_frequent_ones(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        for number in range(2 * TIMED_ONE_IN):
            await client.half("orders", b"x", unique=f"{number:032X}")
        for _ in range(3):
            assert (await client.ask(28, {})).code == 0  # GET_BROKER_RUNTIME_INFO
        assert (await client.ask(9_999, {})).code == 3
        value = await scraped(running)
        assert value("halfmq_request_seconds_count", request="SEND_MESSAGE_V2") == 2
        assert value("halfmq_request_seconds_count", request="GET_BROKER_RUNTIME_INFO") == 3
        assert value("halfmq_request_seconds_bucket", request="GET_BROKER_RUNTIME_INFO", le="+Inf") == 3
        assert 0 < (value("halfmq_request_seconds_sum", request="SEND_MESSAGE_V2") or 0) < 60
        assert value("halfmq_requests_total", request="UNKNOWN", outcome="REQUEST_CODE_NOT_SUPPORTED") == 1


async def test_responses_that_leave_together_are_each_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        halves = [client.half("orders", b"x", unique=f"{number:032X}") for number in range(40)]
        others = [client.ask(28, {}) for _ in range(3)]
        assert {answer.code for answer in await asyncio.gather(*halves[:20], *others, *halves[20:])} == {0}
        value = await scraped(running)
        assert value("halfmq_requests_total", request="SEND_MESSAGE_V2", outcome="SUCCESS") == 40
        assert value("halfmq_requests_total", request="GET_BROKER_RUNTIME_INFO", outcome="SUCCESS") == 3
        assert value("rocketmq_half_messages", topic="orders") == 40


async def test_names_beyond_the_maximum_are_summed_and_those_shown_stay(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0, metrics_names_max=2) as running:
        client = await running.client()
        for number, topic in enumerate(("first", "second", "third", "fourth")):
            await client.half(topic, b"x", unique=f"{number:032X}", group=f"G{topic}")
            value = await scraped(running)
        for name in ("first", "second"):
            assert value("rocketmq_half_messages", topic=name) == 1
            assert value("halfmq_undecided_transactions", producer_group=f"G{name}") == 1
        assert value("rocketmq_half_messages", topic="third") is None
        assert value("rocketmq_half_messages", topic="_other") == 2
        assert value("halfmq_undecided_transactions", producer_group="_other") == 2
        assert value("halfmq_undecided_oldest_seconds", producer_group="_other") is not None


#: Functions and labels of PromQL that queries here use, and Grafana's variables.
_NAME = re.compile(r"\b((?:halfmq|rocketmq|process)_\w+)")
DEPLOY = Path(__file__).parents[4] / "deploy"


def queries() -> list[str]:
    """Of the dashboard, and of the rules."""
    dashboard = json.loads((DEPLOY / "grafana/halfmq.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    found += [
        variable["query"]["query"]
        for variable in dashboard["templating"]["list"]
        if isinstance(variable["query"], dict)
    ]
    rules = yaml.safe_load((DEPLOY / "prometheus/halfmq.rules.yml").read_text())
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


async def test_dashboard_and_rules_ask_for_names_that_there_are(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        text = await text_of(running)
    kinds = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    kinds |= {name: family.kind for name, family in RELAY.items()}
    there = {name for name, kind in kinds.items() if kind != HISTOGRAM}
    there |= {f"{name}_bucket" for name, kind in kinds.items() if kind == HISTOGRAM}
    asked = {name for query in queries() for name in _NAME.findall(query)}
    assert len(queries()) > 40
    assert len(asked) > 30
    assert asked - there == set()
    every = {**FAMILIES, **RELAY}
    for query in queries():
        for labels in re.findall(r"\bby \(([^)]*)\)", query):
            families = [every[name.removesuffix("_bucket")] for name in _NAME.findall(query)]
            known = {"instance", "le", *(label for family in families for label in family.labels)}
            assert set(labels.split(", ")) <= known, query


async def test_names_of_peers_forge_no_series(tmp_path: Path) -> None:
    group = 'a"} 1\nhalfmq_ready 0\n\\'
    async with serving(tmp_path, http_port=0) as running:
        running.broker._sequencer.engine.note(Heartbeat(1, "c", 409, "JAVA", (group,), (), 0))
        value = await scraped(running)
        assert value("halfmq_reachable_producers", producer_group=group) == 1
        assert value("halfmq_ready") == 1


async def test_a_scrape_during_a_stall_has_what_is_not_stored_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "DURABLE_S", 0.05)
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        await client.half("orders", b"x", unique="A" * 32)
        sequencer = running.broker._sequencer
        monkeypatch.setattr(sequencer, "after_durable", lambda *withheld: None)
        sequencer.engine.note(DiskSpace(True))
        value = await scraped(running)
        assert (value("halfmq_ready"), value("halfmq_state_shown")) == (0, 0)
        assert value("halfmq_undecided_transactions", producer_group="P") is None
        assert value("halfmq_requests_total", request="SEND_MESSAGE_V2", outcome="SUCCESS") == 1


async def test_scrapes_at_once_get_one_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        await running.client()
        texts = await asyncio.gather(*[text_of(running) for _ in range(8)])
        assert all(text.count("# TYPE halfmq_ready ") == 1 for text in texts)


async def test_a_scrape_of_many_names_pauses_after_few(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        for number in range(300):
            await client.half(f"t{number}", b"x", unique=f"{number:032X}", group=f"G{number}")
        assert running.broker._http is not None
        scrape = running.broker._http.resources["/metrics"].respond.__self__._scrape  # type: ignore[attr-defined]
        pauses = sum(1 for _ in scrape.of_state())
        # Reading groups and topics in parts of 64, and writing ten families of 300 rows in parts of 32.
        assert pauses > 2 * 300 // 64 + 10 * 300 // 32


async def test_with_users_metrics_need_one_and_probes_none(tmp_path: Path) -> None:
    def statuses(port: int) -> list[int]:
        found = []
        for path in ("/metrics", "/healthz", "/readyz", "/health"):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            client.request("GET", path)
            found.append(client.getresponse().status)
            client.close()
        return found

    async with serving(tmp_path / "data", http_port=0, secrets_key_file=tmp_path / "key") as running:
        assert await asyncio.to_thread(statuses, running.ports.http or 0) == [401, 200, 200, 200]
        running.broker._sequencer.engine.note(DiskSpace(True))
        assert await asyncio.to_thread(statuses, running.ports.http or 0) == [401, 200, 503, 503]


@pytest.mark.slow
def test_nobody_but_a_broker_with_an_http_port_loads_the_library() -> None:
    code = "import sys, halfmq.broker.process, halfmq.cli.serve; from halfmq import Client; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_scrapes_beyond_a_few_are_answered_at_once_so_that_probes_find_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, held = metrics.MetricsResource._run, list[Callable[[], None]]()
    hold = lambda self, steps, done: held.append(lambda: run(self, steps, done))  # noqa: E731
    monkeypatch.setattr(metrics.MetricsResource, "_run", hold)  # a scrape may end in the round in which it begins
    async with serving(tmp_path, http_port=0) as running:
        assert running.broker._http is not None
        resource = running.broker._http.resources["/metrics"]
        told: list[int] = []
        for _ in range(12):
            resource.respond(None, lambda status, _: told.append(status))
        assert told == [503] * 4
        monkeypatch.setattr(metrics.MetricsResource, "_run", run)
        (begin,) = held
        begin()
        await until(lambda: len(told) == 12)
        assert told.count(200) == 8


async def test_the_oldest_age_is_that_of_what_is_still_undecided(tmp_path: Path) -> None:
    """The group stays: another of its transactions is undecided."""
    clock = ShiftedClock()
    async with serving(tmp_path, http_port=0, clock=clock) as running:
        client = await running.client()
        first, second = "AC10000100002A9F0000000000000001", "AC10000100002A9F0000000000000002"
        await client.half("orders", b"one", unique=first)
        clock.passed_ms += 500_000
        await client.half("orders", b"two", unique=second)
        clock.passed_ms += 100_000
        assert 600 <= ((await scraped(running))("halfmq_undecided_oldest_seconds", producer_group="P") or 0) < 630
        fields = {"group": "P", "txId": first, "verdict": "ROLLBACK", "operator": "ada", "reason": ""}
        assert (await client.ask(codes.HMQ_RESOLVE, fields)).code == 0
        assert 100 <= ((await scraped(running))("halfmq_undecided_oldest_seconds", producer_group="P") or 0) < 130


async def test_the_time_from_half_to_verdict_is_shown_by_who_gave_it(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, http_port=0, clock=clock) as running:
        client = await running.client()
        prepared = await client.half("orders", b"one", unique="A" * 32)
        await client.half("orders", b"two", unique="B" * 32)
        clock.passed_ms += 500_000
        assert (await client.end(prepared, "A" * 32, 8)).code == 0
        clock.passed_ms += 500_000
        fields = {"group": "P", "txId": "B" * 32, "verdict": "ROLLBACK", "operator": "ada", "reason": ""}
        assert (await client.ask(codes.HMQ_RESOLVE, fields)).code == 0
        value = await scraped(running)
        for decided_by, outcome, waited_s in (("producer", "commit", 500), ("operator", "rollback", 1_000)):
            labels = {"decided_by": decided_by, "outcome": outcome}
            assert value("halfmq_undecided_seconds_count", **labels) == 1
            assert waited_s <= (value("halfmq_undecided_seconds_sum", **labels) or 0) < waited_s + 30
        # 2**19 ms.
        assert value("halfmq_undecided_seconds_bucket", decided_by="producer", outcome="commit", le="524.288") == 1
        assert value("halfmq_undecided_seconds_bucket", decided_by="operator", outcome="rollback", le="524.288") == 0
        assert value("halfmq_undecided_seconds_count", decided_by="operator", outcome="commit") is None


async def test_a_start_counts_nothing_that_an_earlier_run_settled(tmp_path: Path) -> None:
    for _ in range(2):
        async with serving(tmp_path, http_port=0) as running:
            client = await running.client()
            unique = f"{running.broker._store.epoch:032X}"
            prepared = await client.half("orders", b"x", unique=unique)
            assert (await client.end(prepared, unique, 8)).code == 0
            value = await scraped(running)
            assert value("halfmq_verdicts_total", decided_by="producer", outcome="commit") == 1
            assert value("halfmq_undecided_seconds_count", decided_by="producer", outcome="commit") == 1
            assert value("rocketmq_commit_messages_total", topic="orders") == 1
        assert value("rocketmq_messages_in_total", topic="orders") == 1 + _


async def test_responses_of_a_connection_that_ends_are_counted(tmp_path: Path) -> None:
    """They are counted together, when they are written or would have been."""
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        await client.half("orders", b"x", unique="A" * 32)
        peer = next(one for one in running.broker._peers.connected.values() if isinstance(one, CountedConnection))
        request: Request[None] = Request(code=310, ext=None, opaque=1)
        peer.respond(request, 0, b"")
        peer.connection_lost(None)
        assert (await scraped(running))("halfmq_requests_total", request="SEND_MESSAGE_V2", outcome="SUCCESS") == 2


OFFSET = {"consumerGroup": "C", "topic": "orders", "queueId": "0"}


async def test_the_lag_of_a_group_is_shown_in_messages_and_seconds(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serving(tmp_path, http_port=0, clock=clock) as running:
        client = await running.client()
        await client.heartbeat("c", consumers={"C": ["orders"]})
        for waited_ms in (100_000, 200_000, 50_000):
            assert (await client.send("orders", b"x")).code == 0
            clock.passed_ms += waited_ms
        assert (await client.ask(15, {**OFFSET, "commitOffset": "1"})).code == 0
        labels = {"consumer_group": "C", "topic": "orders", "is_retry": "false"}
        value = await scraped(running)
        assert value("rocketmq_consumer_lag_messages", **labels) == 2
        age_s = value("halfmq_consumer_lag_seconds", **labels) or 0
        assert 250 <= age_s < 280
        assert value("rocketmq_consumer_lag_latency", **labels) == pytest.approx(1_000 * age_s)
        assert value("rocketmq_consumer_inflight_messages", **labels) == 0
        assert (await client.pull("orders", 1, count=1)).code == 0
        value = await scraped(running)
        assert value("rocketmq_consumer_inflight_messages", **labels) == 1
        assert value("rocketmq_messages_out_total", consumer_group="C", topic="orders") == 1
        assert (await client.ask(15, {**OFFSET, "commitOffset": "3"})).code == 0
        value = await scraped(running)
        assert value("rocketmq_consumer_lag_messages", **labels) == value("halfmq_consumer_lag_seconds", **labels) == 0


async def test_dead_letters_and_retries_are_shown_by_their_group(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        places = [int((await client.send("orders", b"x")).ext["msgId"][-16:], 16) for _ in range(3)]
        await client.heartbeat("c", consumers={"C": ["orders"]})
        for place, level in zip(places, (-1, -1, 1), strict=True):
            fields = {"offset": str(place), "group": "C", "delayLevel": str(level)}
            assert (await client.ask(36, fields)).code == 0
        value = await scraped(running)
        assert value("rocketmq_send_to_dlq_messages_total", consumer_group="C") == 2
        assert value("halfmq_delayed_messages") == 1
        assert value("rocketmq_messages_in_total", topic="orders") == 3
        assert value("rocketmq_messages_in_total", topic="%DLQ%C") is None


async def test_a_query_is_shown_with_its_position_and_how_far_it_is_from_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        run = await QueryRun.begin(client, query="revenue")
        assert (await run.prepare(0, "a", messages("m", 2))).code == 0
        (query,) = running.state.queries.values()
        labels = {"query": "revenue", "topic": query.topic}
        value = await scraped(running)
        assert value("halfmq_query_undecided_batches", **labels) == 1
        assert value("halfmq_query_last_batch", **labels) == value("halfmq_query_position_bytes", **labels) == -1
        assert value("halfmq_query_behind_bytes", **labels) is None
        assert (await run.decide(0, "a")).code == 0
        position = query.decisions[0].position
        behind = []
        for _ in range(2):
            value = await scraped(running)
            assert value("halfmq_query_undecided_batches", **labels) == 0
            assert value("halfmq_query_last_batch", **labels) == 0
            assert value("halfmq_query_position_bytes", **labels) == position
            assert value("halfmq_query_behind_bytes", **labels) == running.state.log_end - position
            behind.append(value("halfmq_query_behind_bytes", **labels) or 0)
            assert (await client.send("orders", b"x" * 5_000)).code == 0
        assert behind[1] >= behind[0] + 5_000
        assert value("rocketmq_commit_messages_total", topic="T") == 2


async def test_a_query_that_reads_is_behind_as_its_consumer_group(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        for _ in range(10):
            assert (await client.send("orders", b"x")).code == 0
        given = {
            "url": f"rocketmq://127.0.0.1:{running.ports.names}", "subscribe": "orders", "startingOffsets": "earliest",
            "group": "revenue", "publishPosition": "true", "maxOffsetsPerTrigger": "4",
        }  # fmt: skip
        reader = HalfmqStreamReader(parse_options(given).for_stream())

        def one_batch() -> None:
            start = reader.initialOffset()
            reader.commit(reader.latestOffset(start, reader.getDefaultReadLimit()))

        await loop.run_in_executor(None, one_batch)
        labels = {"consumer_group": "revenue", "topic": "orders", "is_retry": "false"}
        value = await scraped(running)
        assert value("rocketmq_consumer_lag_messages", **labels) == 6
        assert value("halfmq_consumer_lag_seconds", **labels) is not None
        reader.stop()


async def status_of_metrics(running: Running, user: str = "", password: str = "") -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        client = http.client.HTTPConnection("127.0.0.1", running.ports.http or 0, timeout=10)
        given = {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"} if user else {}
        client.request("GET", "/metrics", headers=given)
        response = client.getresponse()
        text = response.read().decode()
        client.close()
        return response.status, text

    return await asyncio.to_thread(ask)


async def test_a_user_who_may_describe_the_broker_gets_metrics_and_others_do_not(tmp_path: Path) -> None:
    async with serving_users(tmp_path, http_port=0) as users:
        await users.add("prometheus", ("describe:broker",), password="correct horse battery")
        await users.add("shop", ("send:topic:*", "describe:topic:*"))
        running = users.running
        status, text = await status_of_metrics(running, "prometheus", "correct horse battery")
        assert (status, "halfmq_ready 1.0" in text) == (200, True)
        assert (await status_of_metrics(running, "prometheus", users.secrets["prometheus"]))[0] == 200
        refused = {
            401: ((), ("prometheus", "wrong"), ("nobody", "correct horse battery")),
            403: (("shop", users.secrets["shop"]),),
        }
        for wanted, tries in refused.items():
            for given in tries:
                status, text = await status_of_metrics(running, *given)
                assert (status, "halfmq_ready" in text) == (wanted, False), given


HOSTILE = (
    'quote"', "back\\slash", "back\\", "\\n", "new\nline", "carriage\rreturn", "\u2028\x85\x0b", "é漢🎉", "{a=b},#", "", " ", "_other", "x" * 255,
    'a"} 1\nhalfmq_ready 0\n\\',
)  # fmt: skip


async def test_whatever_peers_name_is_one_label_as_they_wrote_it(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        running.broker._sequencer.engine.note(Heartbeat(1, "c", 409, "JAVA", HOSTILE, (), 0))
        value = await scraped(running)
        for group in HOSTILE:
            assert value("halfmq_reachable_producers", producer_group=group) == 1, repr(group)
        assert value("halfmq_ready") == 1


async def test_names_over_the_connection_never_make_a_scrape_fail(tmp_path: Path) -> None:
    """As a peer sends them, with halves of surrogate pairs: refused, or shown."""
    async with serving(tmp_path, http_port=0) as running:
        client = await running.client()
        asked = 0
        for name in (*HOSTILE, "\ud800", "a\x00b"):
            for ask in (
                lambda client, name: client.heartbeat("c", producers=[name], consumers={name: [name]}),
                lambda client, name: client.half(name or "t", b"x", unique="A" * 32, group=name),
                lambda client, name: client.ask(15, {**OFFSET, "consumerGroup": name, "commitOffset": "0"}),
            ):
                with suppress(ConnectionError):  # no JSON
                    await ask(client, name)
                    asked += 1
                if client.closed.is_set():
                    client = await running.client()
        assert asked >= 3 * len(HOSTILE)
        value = await scraped(running)
        assert value("halfmq_ready") == value("halfmq_state_shown") == 1


async def test_a_thousand_names_are_shown_and_the_others_summed(tmp_path: Path) -> None:
    async with serving(tmp_path, http_port=0) as running:
        names = tuple(f"g{number}" for number in range(1_007))
        running.broker._sequencer.engine.note(Heartbeat(1, "c", 409, "JAVA", names, (), 0))
        series = series_in(await text_of(running))
        shown = {labels: count for (name, labels), count in series.items() if name == "halfmq_reachable_producers"}
        assert shown.pop((("producer_group", "_other"),)) == 7
        assert sorted(shown.values()) == [1] * 1_000


async def test_of_many_groups_some_are_read_in_turns_and_those_that_are_shown_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "QUEUES_MAX", 4)
    async with serving(tmp_path, http_port=0, metrics_names_max=2) as running:
        client = await running.client()
        groups = [f"g{number}" for number in range(6)]
        await client.heartbeat("c", consumers={group: ["orders"] for group in groups})
        for group in groups:
            assert (await client.send("orders", b"x")).code == 0
            assert (await client.ask(15, {**OFFSET, "consumerGroup": group, "commitOffset": "0"})).code == 0
        reads = Calls(monkeypatch, scrape.Scrape, "_queue")

        async def lags() -> tuple[float | None, ...]:
            value = await scraped(running)
            labels = ((name, "orders") for name in groups[:2])
            return tuple(
                value("rocketmq_consumer_lag_messages", consumer_group=group, topic=topic, is_retry="false")
                for group, topic in (*labels, ("_other", "_other"))
            )

        assert (await lags(), reads.seen) == ((6, 6, 2 * 6), 4), "four groups, two of them with series"
        assert (await lags(), reads.seen) == ((6, 6, 4 * 6), 8), "the last two come first"
        assert (await client.send("orders", b"x")).code == 0
        assert (await lags(), reads.seen) == ((7, 7, 4 * 7), 14), "the four others, and what is shown besides"
        assert (await client.send("orders", b"x")).code == 0
        assert (await lags(), reads.seen) == ((8, 8, 2 * 8 + 2 * 7), 18), "two others are as old as the last scrape"
        deleted = running.broker._sequencer.engine.state.offsets
        del deleted["g2"], deleted["g0"]
        assert (await lags())[0] is None
