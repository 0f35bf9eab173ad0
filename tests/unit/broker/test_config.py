"""Settings that cannot work are refused by name; hosts are packed as RocketMQ writes them."""

from pathlib import Path

import pytest

from halfmq.broker.config import BrokerConfig, packed_host
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
        {"host": ""},
        {"host": "a b"},
        {"host": "0.0.0.0:10911"},
        {"host": "[::1]"},
        {"host": "a..b"},
        {"host": "a" * 64},
        {"host": "10.0.0.256"},
        {"host": "224.0.0.1"},
        {"host": "ff02::1"},
        {"host": "255.255.255.255"},
        {"advertise_host": ""},
        {"advertise_host": "a b"},
        {"advertise_host": "mq:10911"},
        {"advertise_host": "10.0.0.256"},
        {"advertise_host": "0.0.0.0"},
        {"advertise_host": "::"},
        {"advertise_host": "239.1.2.3"},
        {"advertise_host": "255.255.255.255"},
        {"disk_reserve_bytes": -1},
        {"connections_max": 0},
        {"unfinished_bytes_max": (64 << 20) + 15},
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
    ],
)
def test_setting_that_cannot_work_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        BrokerConfig(tmp_path, **wrong).checked()  # type: ignore[arg-type]


def test_defaults_work(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path)
    assert config.checked() is config


@pytest.mark.parametrize(
    "host", ["mq", "482915530017", "my_broker-1.svc.cluster.local.", "1a", "10.0.0.2", "fd00::2", "fe80::1%eth0"]
)
def test_address_or_name_is_a_host(tmp_path: Path, host: str) -> None:
    BrokerConfig(tmp_path, host=host).checked()
    BrokerConfig(tmp_path, advertise_host=host).checked()


@pytest.mark.parametrize(
    ("host", "advertise", "told"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", None, "127.0.0.1"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("0.0.0.0", "mq", "mq"),
        ("::", None, "::1"),
        ("::0", None, "::1"),
        ("localhost", None, "127.0.0.1"),
    ],
)
def test_clients_are_told_the_advertised_host_or_the_bound_one(
    tmp_path: Path, host: str, advertise: str | None, told: str
) -> None:
    assert BrokerConfig(tmp_path, host=host, advertise_host=advertise).advertised() == told


def test_host_is_packed_with_an_int32_port() -> None:
    assert packed_host("127.0.0.1", 10_911).hex() == "7f00000100002a9f"
    assert len(packed_host("::1", 1)) == 20
    assert packed_host("broker.example", 1) == packed_host("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("host", "advertise", "expected"),
    [
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("0.0.0.0", "mq.example", False),
        ("0.0.0.0", "127.0.0.1", False),  # somebody said so: a tunnel, or a port of a container
        ("127.0.0.1", None, False),
        ("10.0.0.1", None, False),
        ("mq.example", None, False),
    ],
)
def test_loopback_told_for_everywhere_is_noticed(
    tmp_path: Path, host: str, advertise: str | None, expected: bool
) -> None:
    config = BrokerConfig(tmp_path, host=host, advertise_host=advertise)
    assert config.advertises_loopback_for_everywhere() == expected
