"""Ports: an error to listen is an error of the start, and connections beyond the limit take nothing from the store."""

import asyncio
import errno
import logging
import socket
from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.ports import free_port
from tests.support.raw_client import RawClient
from tests.support.waiting import until

from halfmq.broker.listener import PortPlan, bind, cannot_listen
from halfmq.broker.peers.peers import Rejected
from halfmq.errors import EnvironmentFailed, PortTaken


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (OSError(errno.EADDRINUSE, "in use"), PortTaken, "stop the other process"),
        (OSError(errno.EADDRNOTAVAIL, "cannot assign"), EnvironmentFailed, "--host"),
        (socket.gaierror(socket.EAI_NONAME, "not known"), EnvironmentFailed, "--host"),
        (OSError(errno.EACCES, "denied"), EnvironmentFailed, "1024"),
        (OSError(errno.EMFILE, "too many files"), EnvironmentFailed, "limits"),
    ],
)
def test_each_reason_not_to_listen_has_its_hint(error: OSError, kind: type[Exception], hint: str) -> None:
    found = cannot_listen("the broker cannot listen on h:1", error)
    assert type(found) is kind
    assert hint in found.hint
    assert ("other process" in found.hint) == (kind is PortTaken)


def other_process(port: int) -> socket.socket:
    """Bound as another broker binds: beside us, while nobody listens."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


async def test_port_that_somebody_else_listens_on_since_it_was_bound_is_said() -> None:
    door = await bind(PortPlan("broker", lambda host: Rejected("nobody is served"), 0), ("127.0.0.1",))
    with other_process(door.port) as other:
        other.listen()
        with pytest.raises(PortTaken) as caught:
            door.listen()
    door.close()
    assert "the broker cannot listen on 127.0.0.1" in str(caught.value)


async def test_clients_that_send_to_the_port_minus_2_are_served_there(tmp_path: Path) -> None:
    port = free_port(-2)
    async with serving(tmp_path, port=port) as running:
        vip = await RawClient.connect(port - 2)
        assert (await vip.send("T", b"by the VIP channel", unique="1" * 32)).code == 0
        await vip.close()
        assert b"by the VIP channel" in (await (await running.client()).pull("T")).body
    with pytest.raises(ConnectionError):
        await RawClient.connect(port - 2)
    async with serving(tmp_path, port=port, vip_channel=False):
        with pytest.raises(ConnectionError):
            await RawClient.connect(port - 2)


async def test_vip_port_that_is_taken_is_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port(-2)
    with other_process(port - 2) as other:
        other.listen()
        async with serving(tmp_path, port=port) as running:
            assert (await (await running.client()).ask(106)).code == 0
            assert running.broker._ports.number_of("VIP channel") is None
        (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert f"the VIP channel cannot listen on 127.0.0.1:{port - 2}" in told
        assert "--no-vip-channel" in told


async def test_every_address_of_a_name_gets_the_same_port() -> None:
    door = await bind(PortPlan("broker", lambda host: Rejected("nobody is served"), 0), ("",))
    try:
        assert {listening.getsockname()[1] for listening in door._sockets} == {door.port}
    finally:
        door.close()


async def test_connections_beyond_the_limit_are_closed_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a burst accepts no more descriptors than the limit says, and one line tells of it."""
    caplog.set_level(logging.WARNING, "halfmq.listener")
    async with serving(tmp_path, connections_max=3) as running:
        first = await running.client()
        assert (await first.ask(106)).code == 0
        burst = await asyncio.gather(*[running.client(names=bool(number % 2)) for number in range(20)])
        await until(lambda: sum(client.closed.is_set() for client in burst) >= 18)
        assert (await first.ask(106)).code == 0
        assert len(running.broker._peers.connected) == 3
        assert running.broker._peers.places.taken == 3
        told = [record.getMessage() for record in caplog.records if record.name == "halfmq.listener"]
        assert 1 <= len(told) <= 2, "one line for each port"
        assert "limit of 3 reached" in told[0]
        for client in burst:
            await client.close()
        await until(lambda: len(running.broker._peers.connected) == 1)
        assert (await (await running.client()).ask(106)).code == 0, "there is room again"


async def test_machine_without_descriptors_is_asked_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("halfmq.broker.listener._REST_S", 0.05)
    async with serving(tmp_path) as running:
        ((_, door), _) = running.broker._ports._bound
        (real,) = door._sockets

        class Poor:
            tries = 0

            def fileno(self) -> int:
                return real.fileno()

            def accept(self) -> object:
                self.tries += 1
                if self.tries == 1:
                    raise OSError(errno.EMFILE, "Too many open files")
                return real.accept()

        poor = Poor()
        asyncio.get_running_loop().remove_reader(real)
        asyncio.get_running_loop().add_reader(real, door._arrived, poor)
        assert (await (await running.client()).ask(106)).code == 0
        assert poor.tries == 1
        assert "Too many open files" in caplog.text
