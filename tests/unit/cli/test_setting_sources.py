"""Settings of `halfmq serve` from options, the environment and a file: which wins, and what is refused."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from halfmq.broker.config import BrokerConfig
from halfmq.cli.main import app
from halfmq.cli.serve import KINDS
from halfmq.cli.setting_sources import option_name, variable_name
from halfmq.store.store import Durability

#: A value for each setting, other than its default, as in a file.
VALUES: Final[dict[str, Any]] = {
    "data": "here", "host": ["::1", "127.0.0.1"], "port": 1, "name_port": 2, "http_port": 3, "http_host_name": ["proxy"], "vip_channel": False,
    "advertise_host": "mq", "durability": "memory", "store_group": "readers", "segment_bytes": 131_072, "checkpoint_interval_ms": 9,
    "retention_hours": 0.5, "retention_bytes": 7, "retention_check_ms": 8, "hold_bytes": 10, "trust_clock": True, "dedup_window_ms": 45,
    "disk_reserve_bytes": 6, "connections_max": 11, "connections_per_address_max": 5, "unfinished_bytes_max": 1 << 27,
    "outgoing_bytes_max": 1 << 26, "check_immunity_ms": 12, "check_interval_ms": 13, "check_interval_max_ms": 140, "check_answer_ms": 14,
    "checks_in_flight_max": 15, "undecided_max": 16, "undecided_bytes_max": 17, "undecided_total_max": 18, "undecided_total_bytes_max": 19,
    "undecided_groups_max": 20, "delayed_total_max": 21, "topics_max": 22, "groups_max": 23, "queries_max": 24, "auto_create_topics": False,
    "auto_create_groups": False, "tls_cert": "c.pem", "tls_key": "k.pem", "tls_client_ca": None, "tls_mode": "permissive",
    "secrets_key_file": "key", "insecure": True, "audit_log": "audit", "audit_log_bytes": 1 << 22, "audit_log_files": 3,
    "ports_file": "ports.json", "verbose": True, "metrics_names_max": 7, "log_format": "json",
}  # fmt: skip
#: With a CA of clients permissive TLS is not possible, so these belong together in another test.
GIVEN: Final = {name: value for name, value in VALUES.items() if value is not None}
CHANGED: Final = {"host": ["127.0.0.1"], "port": 77, "durability": "fsync", "retention_hours": 9.0, "vip_channel": True}


def in_file(path: Path, values: dict[str, Any]) -> Path:
    # A string, a number, an array of strings, true and false are the same in TOML as in JSON.
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path


def as_variables(values: dict[str, Any]) -> dict[str, str]:
    texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in values.items()}
    return {variable_name(name): text for name, text in texts.items()}


def as_options(values: dict[str, Any]) -> list[str]:
    options: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            options.append(option_name(name) if value else f"--no-{option_name(name)[2:]}")
        else:
            for one in value if isinstance(value, list) else [value]:
                options += [option_name(name), str(one)]
    return options


def run(*arguments: str, environment: dict[str, str] | None = None, status: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "200", **(environment or {})}).invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    return result.output


def shown(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(run("config", "show", "--json", *arguments, environment=environment))
    return found


def values(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: one["value"] for name, one in found.items()}


def test_each_setting_comes_from_each_source(tmp_path: Path) -> None:
    assert VALUES.keys() == KINDS.keys()
    defaults = values(shown())
    assert [name for name in GIVEN if defaults[name] == GIVEN[name]] == []
    file = in_file(tmp_path / "halfmq.toml", {name: value for name, value in GIVEN.items() if name != "trust_clock"})
    environment = as_variables(GIVEN)
    for arguments, variables, kind in (
        (as_options(GIVEN), {}, "option"),
        ([], environment, "environment"),
        (["--config", str(file)], {}, "file"),
    ):
        found = shown(*arguments, environment=variables)
        if kind == "file":
            assert found.pop("trust_clock") == {"value": False, "source": "default", "from": None}
        assert values(found) == {name: VALUES[name] for name in found}
        assert {one["source"] for name, one in found.items() if VALUES[name] is not None} == {kind}
    ca = {"tls_cert": "c.pem", "tls_key": "k.pem", "tls_client_ca": "ca.pem"}
    for arguments, variables in (
        (as_options(ca), {}),
        ([], as_variables(ca)),
        (["--config", str(in_file(tmp_path / "ca.toml", ca))], {}),
    ):
        assert values(shown(*arguments, environment=variables))["tls_client_ca"] == "ca.pem"


@pytest.mark.parametrize("name", CHANGED)
def test_option_wins_over_environment_which_wins_over_file(tmp_path: Path, name: str) -> None:
    file = in_file(tmp_path / "halfmq.toml", {name: GIVEN[name]})
    other = {"host": ["::1"], "port": 78, "durability": "memory", "retention_hours": 10.0, "vip_channel": False}[name]
    by_file = shown("--config", str(file))[name]
    by_environment = shown("--config", str(file), environment=as_variables({name: CHANGED[name]}))[name]
    by_option = shown(
        "--config", str(file), *as_options({name: other}), environment=as_variables({name: CHANGED[name]})
    )[name]
    assert by_file == {"value": GIVEN[name], "source": "file", "from": str(file)}
    assert by_environment == {"value": CHANGED[name], "source": "environment", "from": variable_name(name)}
    assert by_option == {"value": other, "source": "option", "from": option_name(name)}


def test_serve_takes_environment_and_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[BrokerConfig, Any, Any]] = []

    def serve(config: BrokerConfig, *, ports_file: Any, verbose: Any, log_format: Any) -> int:
        seen.append((config, ports_file, verbose))
        return 0

    monkeypatch.setattr("halfmq.broker.process.run", serve)
    file = in_file(tmp_path / "f.toml", {"data": str(tmp_path), "port": 1, "durability": "memory", "ports_file": "p"})
    run("serve", environment={"HALFMQ_CONFIG": str(file), "HALFMQ_PORT": "2", "HALFMQ_VERBOSE": "1"})
    ((config, ports_file, verbose),) = seen
    assert (config.data, config.port, config.durability) == (tmp_path, 2, Durability.MEMORY)
    assert (ports_file, verbose) == (Path("p"), True)


def test_text_names_option_variable_and_file(tmp_path: Path) -> None:
    file = in_file(tmp_path / "f.toml", {"retention_hours": 24})
    arguments = ("config", "show", "--config", str(file), "--name-port", "7")
    text = run(*arguments, "--sources", environment={"HALFMQ_PORT": "1234"})
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert rows["retention_hours"] == ["24.0", "file", str(file)]
    assert rows["port"] == ["1234", "environment", "HALFMQ_PORT"]
    assert rows["name_port"] == ["7", "option", "--name-port"]
    assert rows["http_port"] == ["-", "default"]
    assert rows["host"] == ["127.0.0.1", "default"]
    assert "default" not in run(*arguments)


@pytest.fixture
def never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that are not refused would start a broker, which runs until somebody stops it."""
    monkeypatch.setattr("halfmq.broker.process.run", lambda config, **options: 0)


@pytest.mark.usefixtures("never_serves")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("retention-hours = 1", "there is no setting retention-hours (the nearest one is retention_hours"),
        ("prot = 1", "there is no setting prot (the nearest one is port"),
        ("[serve]\nport = 1", "there is no setting serve"),
        ('port = "1"', "port must be an integer"),
        ("port = 1.5", "port must be an integer"),
        ("port = true", "port must be an integer"),
        ("verbose = 1", "verbose must be true or false"),
        ('verbose = "yes"', "verbose must be true or false"),
        ("retention_hours = true", "retention_hours must be a number"),
        ("durability = 1", "durability must be a string"),
        ("durability = 'none'", "Invalid value for '--durability'"),
        ("host = 1", "host must be an array of strings"),
        ("host = [1]", "host must be an array of strings"),
        ("trust_clock = true", "trust_clock cannot be set in a file"),
        ("config = 'x'", "there is no setting config"),
        ("port", "it is not TOML"),
        ("retention_hours = nan", "--retention-hours"),
        ("data = ''", "an empty path"),
    ],
)
@pytest.mark.parametrize("command", [("serve",), ("config", "show")])
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, line: str, says: str, command: tuple[str, ...]) -> None:
    file = tmp_path / "halfmq.toml"
    file.write_text(line + "\n")
    data = () if line.startswith("data") else ("--data", str(tmp_path / "data"))
    assert says in run(*command, *data, "--config", str(file), status=2)


def test_settings_that_no_broker_can_have_are_refused_by_what_shows_them(tmp_path: Path) -> None:
    file = in_file(tmp_path / "halfmq.toml", {"port": -1})
    assert "port -1 not possible" in run("config", "show", "--config", str(file), status=2)


@pytest.mark.usefixtures("never_serves")
@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("HALFMQ_PROT", "1", "there is no variable HALFMQ_PROT (the nearest one is HALFMQ_PORT"),
        ("HALFMQ_RETENTION", "1", "there is no variable HALFMQ_RETENTION (the nearest one is HALFMQ_RETENTION_"),
        ("HALFMQ_PORT", "x", "(from environment HALFMQ_PORT)"),
        ("HALFMQ_VERBOSE", "maybe", "(from environment HALFMQ_VERBOSE)"),
        ("HALFMQ_CONFIG", "/nowhere/halfmq.toml", "it cannot be read: No such file or directory"),
        ("HALFMQ_RETENTION_HOURS", "-1", "--retention-hours"),
    ],
)
def test_variable_that_cannot_be_used_is_refused(tmp_path: Path, variable: str, text: str, says: str) -> None:
    for command in (("serve",), ("config", "show")):
        assert says in run(*command, "--data", str(tmp_path), environment={variable: text}, status=2)


def test_variables_of_others_are_no_settings() -> None:
    others = {
        "HALFMQ_URL": "rocketmq://mq:9876", "HALFMQ_GROUP": "shop", "HALFMQ_OPERATOR": "ada", "HALFMQ_DATABASE_URL": "sqlite://",
        "HALFMQ_SECRET": "hush-hush", "HALFMQ_TEST_SEED": "7", "HALFMQ_SERVICE_HOST": "10.0.0.1", "HALFMQ_SERVICE_PORT": "9876",
        "HALFMQ_SERVICE_PORT_NAMES": "9876", "HALFMQ_NAME_PORT": "tcp://10.0.0.1:8080", "HALFMQ_METRICS_SERVICE_HOST": "10.0.0.1", "HALFMQ_PORT": "tcp://10.0.0.1:9876", "HALFMQ_PORT_9876_TCP": "tcp://10.0.0.1:9876",
        "HALFMQ_PORT_9876_TCP_PROTO": "tcp", "HALFMQ_PORT_9876_TCP_PORT": "9876", "HALFMQ_PORT_9876_TCP_ADDR": "10.0.0.1",
        "HALFMQ_HTTP_PORT": "",
    }  # fmt: skip
    found = shown(environment=others)
    assert {one["source"] for one in found.values()} == {"default"}
    assert "hush-hush" not in json.dumps(found) + run("config", "show", "--sources", environment=others)
