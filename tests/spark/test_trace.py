"""One trace, from an HTTP request to a row that Spark wrote: the process of the request is killed after its local commit, another one
answers the check and handles the message, and Spark reads the message and writes another.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tests.support.ports import free_port
from tests.support.recorded_telemetry import Recorded, linked
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

from halfmq import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
TRACE = "0af7651916cd43dd8448eb211c80319c"
#: What the caller of the service says.
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "tracestate": "shop=7"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "broker.log", "--check-immunity-ms", "100")
    served.start()
    yield served
    served.stop()


class Service:
    """A process of ``tests.support.traced_service``."""

    def __init__(self, broker: Served, directory: Path, name: str, **environment: str) -> None:
        self.port = free_port()
        self.log = directory / f"{name}.log"
        self._spans = directory / f"{name}.spans"
        own = {"HALFMQ_URL": broker.url, "HALFMQ_DATABASE": str(directory / "shop.db"), "SPANS": str(self._spans)}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "tests.support.traced_service:fastapi", "--port", str(self.port)],
                cwd=ROOT, env=os.environ | own | environment, stdout=output, stderr=output,
            )  # fmt: skip

    def ask(self, path: str, method: str = "GET", **headers: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return int(response.status)

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            with contextlib.suppress(OSError):
                return self.ask("/ready") == 200
            return False

        wait_until(is_ready, "a service that is ready", unless=lambda: self.process.poll() and self.log.read_text())

    def spans(self, name: str) -> list[dict[str, Any]]:
        """Those that ended."""
        text = self._spans.read_text() if self._spans.exists() else ""
        return [span for span in map(json.loads, text.splitlines()) if span["name"] == name]


@contextlib.contextmanager
def running(broker: Served, directory: Path, name: str, **environment: str) -> Iterator[Service]:
    service = Service(broker, directory, name, **environment)
    try:
        service.wait_until_ready()
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def traceparent(span: dict[str, Any]) -> str:
    return f"00-{span['context']['trace_id'][2:]}-{span['context']['span_id'][2:]}-01"


def links(span: dict[str, Any]) -> list[str]:
    return [traceparent(link) for link in span["links"]]


def test_one_trace_from_a_request_to_a_row_of_spark(spark: Any, broker: Served, tmp_path: Path) -> None:
    with running(broker, tmp_path, "first", DIES="1") as first:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError, urllib.error.URLError)):
            first.ask("/orders", "POST", **CALLER)
        assert first.process.wait(PATIENCE_S) == -9
        (half,) = first.spans("send traced-orders")
        assert first.spans("commit traced-orders") == []
    assert half["context"]["trace_id"] == f"0x{TRACE}"

    with running(broker, tmp_path, "second") as second:
        wait_until(lambda: bool(second.spans("process traced-orders")), "the message in the second process", 60)
        (check,) = second.spans("check traced-orders")
        (process,) = second.spans("process traced-orders")
        (invoice,) = second.spans("send traced-invoices")
    assert links(check) == links(process) == [traceparent(half)]
    assert check["attributes"]["halfmq.check.outcome"] == "COMMIT"
    assert check["attributes"]["halfmq.transaction.id"] == half["attributes"]["halfmq.transaction.id"]
    assert invoice["parent_id"] == process["context"]["span_id"]
    assert {check["parent_id"], process["parent_id"]} == {None}, "traces of their own"

    def rows(topic: str, columns: str) -> Any:
        return spark.read.format("halfmq").options(url=broker.url, subscribe=topic, columns=columns).load()

    (row,) = rows("traced-orders", "value,properties").collect()
    assert {name: row.properties[name] for name in CALLER} == {
        "traceparent": traceparent(half),
        "tracestate": CALLER["tracestate"],
    }
    recorded = Recorded()
    context = TraceContextTextMapPropagator().extract(row.properties)
    with recorded.tracers.get_tracer("job").start_as_current_span("report", context):
        pass
    report = recorded.one("report")
    assert report.context is not None
    assert report.context.trace_id == int(TRACE, 16)
    assert linked(report) == []

    written = rows("traced-orders", "value,headers").write.format("halfmq").mode("append")
    written.options(url=broker.url, topic="traced-report", queryName="report").save()
    with Client(broker.url) as mq, mq.consumer("traced-report", group="readers") as messages:
        message = messages.get(PATIENCE_S)
        assert message is not None
        assert {name: message.properties[name] for name in CALLER} == {
            "traceparent": traceparent(half),
            "tracestate": CALLER["tracestate"],
        }
