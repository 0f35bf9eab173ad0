"""Flags of `halfmq serve` become the broker's configuration."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from halfmq.broker.config import BrokerConfig
from halfmq.cli.main import app
from halfmq.cli.serve import serve
from halfmq.store.store import Durability


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ``run`` was called with."""
    seen: dict[str, Any] = {}

    def run(config: BrokerConfig, **options: Any) -> int:
        seen.update(options, config=config)
        return 0

    monkeypatch.setattr("halfmq.broker.process.run", run)
    return seen


def test_defaults_are_those_of_the_configuration(served: dict[str, Any], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert served["config"] == BrokerConfig(tmp_path)


def test_flags_are_taken(served: dict[str, Any], tmp_path: Path) -> None:
    flags = [
        "--data", str(tmp_path), "--host", "0.0.0.0", "--host", "::1", "--port", "0", "--name-port", "1", "--http-port", "2", "--advertise-host", "mq",
        "--durability", "memory", "--segment-bytes", "131072", "--checkpoint-interval-ms", "9", "--retention-hours", "0.5",
        "--retention-bytes", "7", "--retention-check-ms", "8", "--trust-clock", "--disk-reserve-bytes", "6", "--check-immunity-ms", "5",
        "--check-interval-ms", "4", "--check-interval-max-ms", "40", "--check-answer-ms", "41", "--checks-in-flight-max", "42",
        "--undecided-max", "43", "--undecided-bytes-max", "44", "--undecided-total-max", "46", "--undecided-total-bytes-max", "47", "--undecided-groups-max", "48", "--delayed-total-max", "51", "--topics-max", "49", "--groups-max", "50", "--queries-max", "52", "--no-auto-create-groups", "--dedup-window-ms", "45", "--no-auto-create-topics", "--connections-max", "3", "--unfinished-bytes-max", "99", "--outgoing-bytes-max", "98", "--connections-per-address-max", "97",
        "--secrets-key-file", "key", "--insecure", "--audit-log", "audit", "--audit-log-bytes", "96", "--audit-log-files", "95",
        "--store-group", "readers", "--ports-file", str(tmp_path / "ports.json"), "-v",
    ]  # fmt: skip
    assert CliRunner().invoke(app, ["serve", *flags]).exit_code == 0
    config: BrokerConfig = served["config"]
    assert (config.hosts, config.port, config.name_port, config.http_port) == (("0.0.0.0", "::1"), 0, 1, 2)
    assert config.advertise_host == "mq"
    assert (config.durability, config.segment_bytes, config.checkpoint_interval_ms) == (Durability.MEMORY, 131_072, 9)
    assert (config.retention_ms, config.retention_bytes, config.retention_check_ms) == (1_800_000, 7, 8)
    assert (config.outgoing_bytes_max, config.connections_per_address_max) == (98, 97)
    assert config.trust_clock
    assert (config.secrets_key_file, config.insecure, config.audit_log) == (Path("key"), True, Path("audit"))
    assert (config.audit_log_bytes, config.audit_log_files) == (96, 95)
    assert config.store_group == "readers"
    assert (config.disk_reserve_bytes, config.connections_max, config.unfinished_bytes_max) == (6, 3, 99)
    assert (config.settings.check_immunity_ms, config.settings.check_interval_ms) == (5, 4)
    assert (config.settings.check_interval_max_ms, config.settings.check_answer_ms) == (40, 41)
    assert config.settings.dedup_window_ms == 45
    assert config.settings.checks_in_flight_max == 42
    assert (config.settings.undecided_max, config.settings.undecided_bytes_max) == (43, 44)
    assert (config.settings.undecided_total_max, config.settings.undecided_total_bytes_max) == (46, 47)
    assert (config.settings.undecided_groups_max, config.settings.topics_max, config.settings.groups_max) == (
        48,
        49,
        50,
    )
    assert (config.settings.delayed_total_max, config.settings.queries_max) == (51, 52)
    assert not config.settings.auto_create_groups
    assert not config.settings.auto_create_topics
    assert served["ports_file"] == tmp_path / "ports.json"
    assert served["verbose"]


def test_exit_code_is_the_brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("halfmq.broker.process.run", lambda config, **options: 1)
    assert CliRunner().invoke(app, ["serve", "--data", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize("hours", ["nan", "inf", "-inf", "1e300", "1e307", "-1", "876601"])
def test_retention_that_is_no_number_of_hours_is_refused(served: dict[str, Any], tmp_path: Path, hours: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path), f"--retention-hours={hours}"])
    assert result.exit_code == 2, result.output
    assert "--retention-hours" in result.output
    assert not served


@pytest.mark.parametrize("option", ["--data", "--ports-file", "--secrets-key-file", "--audit-log"])
def test_path_that_is_empty_is_refused_and_not_the_current_directory(
    served: dict[str, Any], tmp_path: Path, option: str
) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path), option, ""])
    assert result.exit_code == 2, result.output
    assert f"'{option}': an empty path" in result.output
    assert not served


def test_data_is_required() -> None:
    assert CliRunner().invoke(app, ["serve"]).exit_code == 2


def test_help_names_every_flag_in_full_on_a_narrow_terminal() -> None:
    said = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    flags = [f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters if name != "ctx"]
    assert [flag for flag in flags if flag not in said] == []
    assert len(flags) > 15
