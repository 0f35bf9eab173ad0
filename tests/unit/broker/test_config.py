"""Settings that cannot work are refused by name; hosts are packed as RocketMQ writes them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfmq.broker import config as defaults
from halfmq.broker.config import BrokerConfig, TlsMode, check_caps, packed_host
from halfmq.errors import UsageError
from halfmq.model.settings import BrokerSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes": 1_000},
        {"segment_bytes": 1 << 31},
        {"segment_bytes": (1 << 20) + 4_096},
        {"port": -1},
        {"name_port": 65_536},
        {"port": 10_911, "name_port": 10_911},
        {"http_port": 65_536},
        {"http_port": 10_911, "port": 10_911},
        {"http_port": 9_876, "name_port": 9_876},
        {"hosts": ("",)},
        {"hosts": ("a b",)},
        {"hosts": ("0.0.0.0:10911",)},
        {"hosts": ("[::1]",)},
        {"hosts": ("a..b",)},
        {"hosts": ("a" * 64,)},
        {"hosts": ()},
        {"hosts": ("127.0.0.1", "")},
        {"hosts": ("fe80::1",)},
        {"advertise_host": "fe80::1"},
        {"http_host_names": ("mq:80",)},
        {"http_host_names": ("",)},
        {"hosts": ("10.0.0.256",)},
        {"hosts": ("224.0.0.1",)},
        {"hosts": ("ff02::1",)},
        {"hosts": ("255.255.255.255",)},
        {"advertise_host": ""},
        {"advertise_host": "a b"},
        {"advertise_host": "mq:10911"},
        {"advertise_host": "10.0.0.256"},
        {"advertise_host": "0.0.0.0"},
        {"advertise_host": "::"},
        {"advertise_host": "239.1.2.3"},
        {"advertise_host": "255.255.255.255"},
        {"audit_log_bytes": (1 << 20) - 1},
        {"audit_log_files": -1},
        {"audit_log_files": 1_001},
        {"disk_reserve_bytes": -1},
        {"connections_max": 0},
        {"unfinished_bytes_max": (64 << 20) + 15},
        {"outgoing_bytes_max": (64 << 20) - 1},
        {"connections_per_address_max": 0},
        {"checkpoint_interval_ms": 0},
        {"retention_check_ms": 0},
        {"retention_ms": -1},
        {"retention_bytes": -1},
        {"settings": BrokerSettings(check_interval_ms=0)},
        {"settings": BrokerSettings(check_interval_ms=60_001)},
        {"settings": BrokerSettings(check_immunity_ms=-1)},
        {"settings": BrokerSettings(check_answer_ms=0)},
        {"settings": BrokerSettings(check_answer_ms=1 << 62)},
        {"settings": BrokerSettings(check_immunity_ms=1 << 62)},
        {"settings": BrokerSettings(check_interval_max_ms=1 << 62)},
        {"settings": BrokerSettings(checks_in_flight_max=0)},
        {"settings": BrokerSettings(undecided_max=-1)},
        {"settings": BrokerSettings(undecided_bytes_max=-1)},
        {"settings": BrokerSettings(undecided_total_max=-1)},
        {"settings": BrokerSettings(undecided_total_bytes_max=-1)},
        {"settings": BrokerSettings(undecided_groups_max=-1)},
        {"settings": BrokerSettings(delayed_total_max=-1)},
        {"settings": BrokerSettings(topics_max=-2)},
        {"settings": BrokerSettings(groups_max=-2)},
        {"settings": BrokerSettings(queries_max=-1)},
    ],
)
def test_setting_that_cannot_work_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        BrokerConfig(tmp_path, **{"insecure": True, **wrong}).checked()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host", ["mq", "482915530017", "my_broker-1.svc.cluster.local.", "1a", "10.0.0.2", "fd00::2", "fe80::1%eth0"]
)
def test_address_or_name_is_a_host(tmp_path: Path, host: str) -> None:
    for config in (BrokerConfig(tmp_path, hosts=(host,), insecure=True), BrokerConfig(tmp_path, advertise_host=host)):
        assert config.checked() is config


def test_host_is_packed_with_an_int32_port() -> None:
    assert packed_host("127.0.0.1", 10_911).hex() == "7f00000100002a9f"
    assert len(packed_host("::1", 1)) == 20
    assert packed_host("broker.example", 1) == packed_host("127.0.0.1", 1)


@pytest.mark.parametrize("name", ["topics_max", "groups_max"])
def test_caps_that_do_not_fit_small_segments_are_refused_with_the_smallest_that_would_do(
    tmp_path: Path, name: str
) -> None:
    small = BrokerConfig(tmp_path, segment_bytes=1 << 18, settings=BrokerSettings(**{name: 1_000}))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="262144") as caught:
        small.checked()
    enough = int(re.findall(r"--segment-bytes ([0-9]+)", caught.value.hint)[0])
    replace(small, segment_bytes=enough).checked()
    with pytest.raises(UsageError):
        replace(small, segment_bytes=enough // 2).checked()
    most = int(re.findall(rf"--{name.replace('_', '-')} ([0-9]+)", caught.value.hint)[0])
    replace(small, settings=BrokerSettings(**{name: most})).checked()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no segment size"):
        check_caps(BrokerSettings(**{name: 1 << 40}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "port"),
    [
        ({}, defaults.BROKER_PORT - 2),
        ({"vip_channel": False}, None),
        ({"port": 0}, None),
        ({"port": 2}, None),
        ({"port": 3}, 1),
        ({"port": 9_878}, None),
    ],
)
def test_vip_channel_is_two_below_unless_nothing_or_the_name_service_is_there(
    tmp_path: Path, changes: dict[str, Any], port: int | None
) -> None:
    assert BrokerConfig(tmp_path, **changes).vip_port() == port


#: A configuration with which other machines may connect.
PROTECTED = {"secrets_key_file": Path("/keys/secrets.key"), "tls_cert": Path("c.pem"), "tls_key": Path("k.pem")}
USERS, TLS = "without users (--secrets-key-file)", "without TLS (--tls-cert, --tls-key)"


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "::0", "10.0.0.2", "fd00::2", "fe80::1%eth0", "mq.example", "127.0.0.1.example"]
)
@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ({"secrets_key_file", "tls_cert", "tls_key"}, f"{USERS} and {TLS}"),
        ({"secrets_key_file"}, USERS),
        ({"tls_cert", "tls_key"}, TLS),
        ({"tls_mode"}, "without required TLS (--tls-mode required)"),
    ],
)
def test_other_machines_connect_to_users_and_tls_or_to_who_said_insecure(
    tmp_path: Path, host: str, without: set[str], missing: str
) -> None:
    settings: dict[str, Any] = {name: value for name, value in PROTECTED.items() if name not in without}
    if "tls_mode" in without:
        settings["tls_mode"] = TlsMode.PERMISSIVE
    config = BrokerConfig(tmp_path, hosts=("127.0.0.1", host), **settings)
    with pytest.raises(UsageError) as refused:
        config.checked()
    assert f"--host {host} lets other machines connect, {missing}" in str(refused.value)
    assert "or --insecure, if a firewall" in refused.value.hint
    insecure = replace(config, insecure=True)
    assert insecure.checked() is insecure
    assert insecure.unprotected()


@pytest.mark.parametrize("hosts", [("127.0.0.1",), ("localhost", "::1"), ("127.0.0.2",)])
def test_who_listens_on_loopback_needs_neither(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    config = BrokerConfig(tmp_path, hosts=hosts)
    assert config.checked().unprotected() == ()


def test_with_users_and_tls_other_machines_may_connect(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path, hosts=("::", "10.0.0.2"), **PROTECTED)
    assert config.checked().unprotected() == ()


@pytest.mark.parametrize("file", ["secrets.key", "keys/secrets.key", "../data/./secrets.key"])
def test_the_key_is_not_beside_what_it_protects(tmp_path: Path, file: str) -> None:
    data = tmp_path / "data"
    with pytest.raises(UsageError, match="is in the directory of the store"):
        BrokerConfig(data, secrets_key_file=data / file).checked()
    for elsewhere in (tmp_path / "secrets.key", data / ".." / "secrets.key", tmp_path / "data-keys" / "secrets.key"):
        BrokerConfig(data, secrets_key_file=elsewhere).checked()


def test_there_is_an_audit_log_where_there_are_users_or_a_file_for_it(tmp_path: Path) -> None:
    assert BrokerConfig(tmp_path).audit_file() is None
    assert BrokerConfig(tmp_path, secrets_key_file=Path("k")).audit_file() == tmp_path / "audit.jsonl"
    for key in (None, Path("k")):
        assert BrokerConfig(tmp_path, secrets_key_file=key, audit_log=Path("a")).audit_file() == Path("a")
