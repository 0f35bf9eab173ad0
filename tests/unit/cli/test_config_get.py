"""`halfmq config get`: what a running broker says of its settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.served import SEGMENT_BYTES, Served
from typer.testing import CliRunner

from halfmq.broker.config import BrokerConfig, shown_settings
from halfmq.cli.main import app
from halfmq.cli.serve import KINDS
from halfmq.model.settings import BrokerSettings
from halfmq.model.shown_settings import ShownSetting


def get(url: str, *arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["config", "get", "--url", url, *arguments])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.slow
def test_a_running_broker_says_each_setting_and_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "halfmq.toml"
    file.write_text("retention_hours = 48\ncheck_interval_ms = 900\nundecided_max = 7\n")
    monkeypatch.setenv("HALFMQ_CONFIG", str(file))
    monkeypatch.setenv("HALFMQ_CHECK_INTERVAL_MS", "800")
    monkeypatch.setenv("HALFMQ_SECRET", "hush-hush")
    broker = Served(tmp_path / "data", tmp_path / "log", "--http-port", "0", "--undecided-max", "8")
    broker.start()
    try:
        found = json.loads(get(broker.url, "--json"))
        assert list(found) == list(KINDS)
        assert found["retention_hours"] == {"value": 48.0, "source": "file", "from": str(file)}
        variable = "HALFMQ_CHECK_INTERVAL_MS"
        assert found["check_interval_ms"] == {"value": 800, "source": "environment", "from": variable}
        assert found["undecided_max"] == {"value": 8, "source": "option", "from": "--undecided-max"}
        assert found["durability"] == {"value": "fsync", "source": "default", "from": None}
        assert found["host"]["value"] == ["127.0.0.1"]
        assert found["http_port"]["value"] > 0, "the one that was chosen"
        assert found["topics_max"]["value"] > 0
        assert "hush-hush" not in json.dumps(found)
        assert get(broker.url, "durability", "port").split() == [
            "SETTING", "VALUE", "durability", "fsync", "port", str(broker.port),
        ]  # fmt: skip
        assert "has no setting prot" in get(broker.url, "prot", status=3)
        broker.stop()
        broker.options = ("--segment-bytes", str(2 * SEGMENT_BYTES))
        broker.start()
        assert f" {SEGMENT_BYTES} " in f"{get(broker.url, 'segment_bytes', '--sources')} ", "a store keeps its own"
    finally:
        broker.stop()


def test_values_are_those_that_the_broker_has(tmp_path: Path) -> None:
    given = {
        name: ShownSetting(1, "default") for name in ("connections_max", "segment_bytes", "topics_max", "port", "data")
    }
    config = replace(BrokerConfig(tmp_path), connections_max=5, given=given)
    found = shown_settings(config, BrokerSettings(segment_bytes=6, topics_max=7), {"port": 8})
    values = {name: one.value for name, one in found.items()}
    assert values == {"connections_max": 5, "segment_bytes": 6, "topics_max": 7, "port": 8, "data": 1}
