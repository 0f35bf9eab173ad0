"""``--host``: which addresses a broker listens on, what it advertises, and that clients reach it there. Real sockets of this machine.

A machine may have no IPv6, or no link-local address: each case says what is expected then, too.
"""

import asyncio
import errno
import http.client
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.in_process import serving
from tests.support.ports import free_port
from tests.support.waiting import soon
from typer.testing import CliRunner

from halfmq import AsyncClient
from halfmq.broker import listener as listener
from halfmq.broker.config import BrokerConfig, packed_host
from halfmq.broker.listener import PortPlan, bind
from halfmq.broker.peers.peers import Rejected
from halfmq.cli.main import app
from halfmq.client.connector import TcpConnector
from halfmq.errors import EnvironmentFailed, PortTaken
from halfmq.model.address import Address


def closed(host: str) -> Rejected:
    """A front door that closes every connection."""
    return Rejected("nobody is served")


def has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as made:
            made.bind(("::1", 0))
    except OSError:
        return False
    return True


def link_local() -> str | None:
    """A link-local address of this machine, with its interface."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        digits, _, _, scope, flags, name = line.split()
        if scope == "20" and not int(flags, 16) & 0x48:  # neither tentative nor a duplicate
            return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))}%{name}"
    return None


V6 = {"::1"} if has_v6() else set()
LINK_LOCAL = link_local()
V4 = {"127.0.0.1"}
REACHED = ("127.0.0.1", "::1", *([LINK_LOCAL] if LINK_LOCAL else []))


async def reached(port: int) -> set[str]:
    """Those addresses of this machine on which something listens."""

    async def connects(host: str) -> bool:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            return False
        writer.close()
        return True

    return {host for host in REACHED if await connects(host)}


EVERYWHERE = {host for host in REACHED if host != "::1" or V6}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (("127.0.0.1",), V4),
        (("::1",), V6),
        (("127.0.0.1", "::1"), V4 | V6 if V6 else set()),
        (("127.0.0.1", "127.0.0.1"), V4),
        (("0.0.0.0",), V4),
        (("0.0.0.0", "127.0.0.1"), V4),
        (("127.0.0.1", "0.0.0.0"), V4),
        (("0.0.0.0", "::1"), V4 | V6 if V6 else set()),
        (("::",), EVERYWHERE),
        (("::0",), EVERYWHERE),
        (("::", "0.0.0.0"), EVERYWHERE),
        (("0.0.0.0", "::"), EVERYWHERE),
        (("::", "127.0.0.1", "::1"), EVERYWHERE),
        (("::1", "127.0.0.1", "::"), EVERYWHERE),
        (("localhost", "127.0.0.1"), None),
        ((LINK_LOCAL or "fe80::1%lo",), {LINK_LOCAL} if LINK_LOCAL else set()),
        ((LINK_LOCAL or "fe80::1%lo", "127.0.0.1"), {LINK_LOCAL, "127.0.0.1"} if LINK_LOCAL else set()),
        (("fe80::1%none0",), set()),
        (("127.0.0.1", "203.0.113.7"), set()),
    ],
)
@pytest.mark.parametrize("fixed", [False, True])
async def test_addresses_that_are_listened_on(hosts: tuple[str, ...], expected: set[str] | None, fixed: bool) -> None:
    """``expected``: empty if it is an error; None: whatever the name leads to, of which IPv4 is a part."""
    wanted = free_port() if fixed else 0
    if expected == set():
        with pytest.raises(EnvironmentFailed, match=r"is not an address of this machine|is not known here"):
            await bind(PortPlan("broker", closed, wanted), hosts)
        return
    port = await bind(PortPlan("broker", closed, wanted), hosts)
    try:
        port.listen()
        port.accept()
        found = await reached(port.port)
        assert found == expected if expected is not None else found >= V4
        assert not fixed or port.port == wanted
        assert len(set(port.addresses)) == len(port.addresses) == len(port._sockets)
        assert all(address.endswith(f":{port.port}") for address in port.addresses)
        if hosts == ("::",):
            assert set(port.addresses) == {f"0.0.0.0:{port.port}", *([f"[::]:{port.port}"] if V6 else [])}
        if LINK_LOCAL and hosts == (LINK_LOCAL,):
            assert port.addresses == [f"[{LINK_LOCAL}]:{port.port}"]
    finally:
        port.close()


@pytest.mark.parametrize(("missing", "left"), [(socket.AF_INET6, V4), (socket.AF_INET, {*V6, *EVERYWHERE} - V4)])
async def test_all_addresses_are_those_of_the_families_that_the_machine_has(
    monkeypatch: pytest.MonkeyPatch, missing: socket.AddressFamily, left: set[str]
) -> None:
    real = listener._bind_one

    def without(place: Any, first: Any) -> socket.socket:
        if place.family == missing:
            raise OSError(errno.EAFNOSUPPORT, "not supported")
        return real(place, first)

    with monkeypatch.context() as patch:
        patch.setattr(listener, "_bind_one", without)
        if not left:
            with pytest.raises(EnvironmentFailed):
                await bind(PortPlan("broker", closed, 0), ("::",))
            return
        port = await bind(PortPlan("broker", closed, 0), ("::",))
    port.listen()
    port.accept()
    assert await reached(port.port) == left
    port.close()


async def test_free_port_is_one_that_is_free_on_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the port that is free on the first address may be taken on the second; then another one is tried, a few times."""
    real, taken = listener._bind_one, 3

    def bind_one(place: Any, first: Any) -> socket.socket:
        nonlocal taken
        if first is not None and taken:
            taken -= 1
            raise OSError(errno.EADDRINUSE, "in use")
        return real(place, first)

    monkeypatch.setattr(listener, "_bind_one", bind_one)
    port = await bind(PortPlan("broker", closed, 0), ("127.0.0.1", "127.0.0.2"))
    assert (taken, port.addresses) == (0, [f"127.0.0.1:{port.port}", f"127.0.0.2:{port.port}"])
    port.close()
    taken = 1_000
    with pytest.raises(PortTaken, match=r"the broker cannot listen on 127\.0\.0\.2:0"):
        await bind(PortPlan("broker", closed, 0), ("127.0.0.1", "127.0.0.2"))
    assert taken == 1_000 - listener._PORTS_TRIED


async def test_port_that_is_taken_on_one_address_is_said_with_that_address() -> None:
    port = await bind(PortPlan("broker", closed, 0), ("127.0.0.2",))
    port.listen()
    other = await bind(PortPlan("broker", closed, 0), ("127.0.0.1",))
    other.close()
    with pytest.raises(PortTaken, match=rf"127\.0\.0\.2:{port.port}"):
        await bind(PortPlan("broker", closed, port.port), ("127.0.0.1", "127.0.0.2"))
    port.close()


@pytest.mark.parametrize(
    ("hosts", "advertised", "warned"),
    [
        (("127.0.0.1",), "127.0.0.1", False),
        (("localhost",), "127.0.0.1", False),
        (("::1",), "::1", False),
        (("::",), "127.0.0.1", True),
        (("0.0.0.0", "::"), "127.0.0.1", True),
        (("0.0.0.0", "127.0.0.1"), "127.0.0.1", True),
        (("127.0.0.1", "10.0.0.5"), "10.0.0.5", False),
        (("::", "mq.example"), "mq.example", False),
        (("localhost", "::1", "fd00::2", "10.0.0.5"), "fd00::2", False),
        (("fe80::1%eth0",), "fe80::1%eth0", False),
    ],
)
def test_first_address_that_other_machines_reach_is_advertised(
    tmp_path: Path, hosts: tuple[str, ...], advertised: str, warned: bool
) -> None:
    config = BrokerConfig(tmp_path, hosts=hosts, insecure=True).checked()
    assert (config.advertised(), config.advertises_loopback_for_everywhere()) == (advertised, warned)
    assert len(packed_host(advertised, 1)) in (8, 20)


def url_of(host: str, port: int) -> str:
    """As URLs write an interface."""
    return f"rocketmq://{Address(host, port)}".replace("%", "%25")


Talk = Callable[[str, int], Awaitable[None]]


async def client_sends(host: str, port: int) -> None:
    async with AsyncClient(url_of(host, port)) as mq:
        assert (await soon(mq.send("T", "over this address"))).message_id


async def command_asks(host: str, port: int) -> None:
    invoke: Any = CliRunner().invoke
    url = url_of(host, port)
    result = await asyncio.to_thread(invoke, app, ["tx", "list", "--url", url])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("talk", [client_sends, command_asks])
@pytest.mark.parametrize("hosts", [(LINK_LOCAL or "::1",), ("::",), ("127.0.0.1", "::1")])
async def test_clients_follow_the_route_to_an_address_of_either_family(
    tmp_path: Path, hosts: tuple[str, ...], talk: Talk
) -> None:
    """The name server is asked under one address; the route leads to the advertised one."""
    if not V6:
        hosts = ("127.0.0.1",)
    async with serving(tmp_path, hosts=hosts) as running:
        for host in (
            [hosts[0]]
            if hosts[0] == LINK_LOCAL
            else [host for host in ("127.0.0.1", "::1") if len(hosts) == 2 or hosts == ("::",)]
        ):
            await talk(host, running.ports.names)


def test_interface_of_an_address_is_kept_by_the_loop_of_the_process() -> None:
    """uvloop resolves addresses itself, and its resolver drops the interface."""
    host = LINK_LOCAL or ("::1" if V6 else "127.0.0.1")

    async def talks() -> None:
        port = await bind(PortPlan("broker", closed, 0), (host,))
        port.listen()
        port.accept()
        assert port.addresses == [str(Address(host, port.port))]
        ended = asyncio.get_running_loop().create_future()

        class Ends(asyncio.Protocol):
            def connection_lost(self, error: Exception | None) -> None:
                ended.set_result(error)

        await TcpConnector(None).connect(Address(host, port.port), Ends)
        await soon(ended)
        port.close()

    uvloop.run(talks())


async def test_http_is_served_under_addresses_and_given_names_only(tmp_path: Path) -> None:
    async with serving(
        tmp_path, hosts=("127.0.0.1", "localhost"), advertise_host="mq.example", http_host_names=("proxy",), http_port=0
    ) as running:

        def asked(host: str) -> tuple[int, Any]:
            client = http.client.HTTPConnection("127.0.0.1", running.ports.http or 0, timeout=10)
            client.request("GET", "/health", headers={"Host": host})
            response = client.getresponse()
            told = json.loads(response.read())
            client.close()
            return response.status, told

        for host in (
            "127.0.0.1",
            "[::1]:80",
            "localhost",
            "mq.example",
            "Proxy:8080",
            socket.gethostname(),
            "10.244.0.7:8080",
        ):
            assert await asyncio.to_thread(asked, host) == (200, {"serving": True, "damaged": 0}), host
        status, told = await asyncio.to_thread(asked, "evil.example")
        assert (status, "--http-host-name" in told["error"]) == (421, True)
