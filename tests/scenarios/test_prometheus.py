"""Prometheus itself scrapes a broker, and its alert about a transaction in doubt fires, and clears once an operator settled it."""

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from tests.support.ports import free_port
from tests.support.raw_client import RawClient
from tests.support.served import Served
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
#: Of this alert the test's copy of the rules does not wait for minutes.
ALERT = "HalfmqTransactionInDoubt"
TX_ID = "A" * 32


def rules_at_once(path: Path) -> None:
    rules = yaml.safe_load((DEPLOY / "halfmq.rules.yml").read_text())
    (rule,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == ALERT]
    assert rule["expr"] == "halfmq_undecided_oldest_seconds > 300"
    rule |= {"for": "0s", "expr": "halfmq_undecided_oldest_seconds > 0.5"}
    path.write_text(yaml.safe_dump(rules))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[Served, int]]:
    http_port = free_port()
    served = Served(tmp_path / "data", tmp_path / "broker.log", "--http-port", str(http_port))
    served.start()
    yield served, http_port
    assert served.process is not None
    served.process.kill()
    served.process.wait()


@pytest.fixture
def prometheus(tmp_path: Path, broker: tuple[Served, int]) -> Iterator[str]:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{broker[1]}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules_at_once(tmp_path / "halfmq.rules.yml")
    port = free_port()
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    with (tmp_path / "prometheus.log").open("wb") as output:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=output, stderr=output)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


async def left_undecided(port: int) -> None:
    client = await RawClient.connect(port)
    await client.half("orders", b"x", unique=TX_ID, group="shop")
    await client.close()


def asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]
    except OSError:
        return {}  # it does not listen yet


def firing(prometheus: str) -> set[tuple[str, str]]:
    alerts = asked(f"{prometheus}/api/v1/alerts").get("alerts", [])
    return {
        (one["labels"]["alertname"], one["labels"].get("producer_group", ""))
        for one in alerts
        if one["state"] == "firing"
    }


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is missing: apt-get install prometheus")
def test_the_alert_about_a_transaction_in_doubt_fires_and_clears(broker: tuple[Served, int], prometheus: str) -> None:
    served, _ = broker
    wait_until(
        lambda: any(one["health"] == "up" for one in asked(f"{prometheus}/api/v1/targets").get("activeTargets", []))
    )
    assert (ALERT, "shop") not in firing(prometheus)
    asyncio.run(left_undecided(served.port))
    wait_until(lambda: (ALERT, "shop") in firing(prometheus), "the alert fires")
    command = [sys.executable, "-m", "halfmq", "tx", "rollback", TX_ID, "--url", served.url, "--operator", "ada"]
    subprocess.run([*command, "--reason", "test", "--yes"], check=True, capture_output=True)
    wait_until(lambda: (ALERT, "shop") not in firing(prometheus), "the alert clears")
    query = quote('halfmq_verdicts_total{decided_by="operator",outcome="rollback"} == 1')
    wait_until(lambda: asked(f"{prometheus}/api/v1/query?query={query}")["result"], "the operator's verdict is counted")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus")
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", DEPLOY / "halfmq.rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 rules found" in done.stdout
