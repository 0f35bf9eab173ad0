"""Every door takes the same URLs: one table, through the client, its environment, commands, Spark's source and sink, and relays."""

from collections.abc import Callable
from typing import Any

import pytest
import typer

from halfmq.cli import requests
from halfmq.client.async_client import AsyncClient
from halfmq.errors import UsageError
from halfmq.model.address import Address, Security, ServerUrl, TlsFiles
from halfmq.relay.halfmq import HalfmqPublisher
from halfmq.relay.rocketmq import RocketMqPublisher
from halfmq.spark.options import parse_options
from halfmq.spark.sink.options import parse_sink_options
from halfmq.wire.remoting.header import Request

GOOD = [
    ("rocketmqs://a:1;b:2", [("a", 1), ("b", 2)]),
    ("rocketmqs://u@a:1", [("a", 1)]),
    ("u@a:1", [("a", 1)]),
    ("rocketmq://127.0.0.1:9876", [("127.0.0.1", 9876)]),
    (" rocketmq://a:1;b:2 ", [("a", 1), ("b", 2)]),
    ("rocketmq://a:1,b:2/", [("a", 1), ("b", 2)]),
    ("rocketmq://a:1; b:2;", [("a", 1), ("b", 2)]),
    ("rocketmq://host", [("host", 9876)]),
    ("127.0.0.1:9876;other:1", [("127.0.0.1", 9876), ("other", 1)]),
    ("rocketmq://[::1]:9876", [("::1", 9876)]),
    ("rocketmq://[fe80::1%25eth0]:1", [("fe80::1%eth0", 1)]),
    ("[fe80::1%eth0]:1;a", [("fe80::1%eth0", 1), ("a", 9876)]),
]
#: "hunter2" stands for a secret, which no error shows.
BAD = [
    "rocketmq://",
    "rocketmq:// ; ",
    "kafka://a:1",
    "http://h",
    "rocketmq://a:none",
    "rocketmq://a:70000",
    "a:0",
    "a:1;b:²",
    "rocketmq://[a]:1",
    "rocketmq://[::1",
    "rocketmq://a/b:1",
    "rocketmq://user:hunter2@host:9876",
    "user:hunter2@host:9876",
    "rocketmq://user:hunter2;@a:1;b:2",
    "rocketmq://user:hunter2/#@a:1",
    "amqp://user:hunter2@host/vhost",
    "amqp://hunter2@host",
    "amqp://hunter2",
    "user:hunter2://host",
    "rocketmq://host:9876?password=hunter2",
    "rocketmq://host:9876#hunter2",
    "rocketmq://user:hunter2",
    "rocketmq://host?password=hunter2",
    "rocketmq://user%3Ahunter2%40host:1",
    "user:hunter2:9876",
    "rocketmq://host:1;user:hunter2@other:1",
    "rocketmq://user@hunter2@host:1",
]
Door = Callable[[pytest.MonkeyPatch, str], Any]


def of_client(made: AsyncClient) -> ServerUrl:
    tls = made._connector._tls  # type: ignore[attr-defined]
    user = "" if made._credentials is None else made._credentials.user
    return ServerUrl(made._url.servers, Security(None if tls is None else TlsFiles(), user))


def client(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    return of_client(AsyncClient(url))


def environment(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    monkeypatch.setenv("HALFMQ_URL", url)
    return of_client(AsyncClient.from_env())


def environment_of_rocketmq(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    monkeypatch.delenv("HALFMQ_URL", raising=False)
    monkeypatch.setenv("NAMESRV_ADDR", url)
    return of_client(AsyncClient.from_env())


def command(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    asked: list[ServerUrl] = []

    def ask(url: ServerUrl, *rest: Any) -> Request[dict[str, str]]:
        asked.append(url)
        return Request(code=0, opaque=1, flag=1, ext={})

    monkeypatch.setattr(requests, "ask", ask)
    printed: list[str] = []
    monkeypatch.setattr("halfmq.cli.output.note", printed.append)
    try:
        requests.Commands("halfmq tx").ask(url, 29_003, {}, 1.0)
    except typer.Exit as error:
        raise UsageError(printed[0] if error.exit_code == 2 else "another exit status") from None
    (only,) = asked
    return only


def spark_source(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    return parse_options({"url": url, "subscribe": "t"}).url


def spark_sink(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    return parse_sink_options({"url": url, "topic": "t"}).url


def relay_to_halfmq(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    return HalfmqPublisher(url, group="g").name.removeprefix("halfmq ")


def relay_to_rocketmq(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    return RocketMqPublisher(url).name.removeprefix("rocketmq ")


DOORS = (
    client, environment, environment_of_rocketmq, command, spark_source, spark_sink, relay_to_halfmq, relay_to_rocketmq,
)  # fmt: skip


@pytest.mark.parametrize(("url", "servers"), GOOD)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_reads_the_same_servers(
    door: Door, url: str, servers: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFMQ_SECRET", "s")
    expected: Any = ServerUrl(
        tuple(Address(*server) for server in servers),
        Security(TlsFiles() if "s:" in url else None, "u" if "u@" in url else ""),
    )
    if door in (relay_to_halfmq, relay_to_rocketmq):
        expected = expected.addresses
    assert door(monkeypatch, url) == expected


@pytest.mark.parametrize("url", BAD)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_other_urls_and_shows_no_secret(
    door: Door, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="url") as caught:
        door(monkeypatch, url)
    assert "port" in str(caught.value)  # the hint
    assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("given", [b"rocketmq://user:hunter2@host:9876", {"password": "hunter2"}, None])
def test_what_is_no_text_is_not_shown_either(given: Any) -> None:
    with pytest.raises(UsageError, match="host:port") as caught:
        AsyncClient(given)
    assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("door", [client, environment, environment_of_rocketmq, relay_to_rocketmq])
def test_a_user_needs_a_secret_and_is_not_shown_since_it_may_be_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HALFMQ_SECRET", raising=False)
    with pytest.raises(UsageError, match="names a user, and there is no secret") as caught:
        door(monkeypatch, "rocketmq://hunter2@host:1")
    assert "hunter2" not in str(caught.value) + repr(caught.value)
    made = AsyncClient("rocketmq://hunter2@host:1", secret="hunter2")
    assert "hunter2" not in repr(made._credentials).replace("'hunter2', ***", "")
