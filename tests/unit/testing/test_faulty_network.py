"""The simulated network: the guarantees of TCP without faults, and the effect of each fault."""

import asyncio
from typing import Any

import pytest
from tests.support.faulty_network import End, FaultyNetwork, Manners
from tests.support.virtual_loop import ProcessLoop, Scheduler

from halfmq.broker.listener import PortPlan
from halfmq.broker.peers.peers import Rejected
from halfmq.model.address import Address

ADDRESS = Address("10.0.0.1", 10_911)
CALM = Manners(spike_chance=0.0, cut_chance=0.5, joined_chance=0.0)


class Peer(asyncio.Protocol):
    def __init__(self, echo: bool = False) -> None:
        self.got = b""
        self.pieces = 0
        self.lost: list[Exception | None] = []
        self.full: list[bool] = []
        self.transport: Any = None
        self._echo = echo

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.pieces += 1
        if self._echo:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def pause_writing(self) -> None:
        self.full.append(True)

    def resume_writing(self) -> None:
        self.full.append(False)


class Door:
    """What the network requires of the broker's front door."""

    is_full = False

    def __init__(self) -> None:
        self.served: list[Peer] = []

    def admit(self, host: str) -> Peer | Rejected:
        if self.is_full:
            return Rejected("it is full")
        self.served.append(Peer())
        return self.served[-1]


class Town:
    """One server machine and one client machine."""

    def __init__(self, manners: Manners = CALM, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.network = FaultyNetwork(self.scheduler, seed, manners)
        self.raised: list[BaseException] = []
        self.server = ProcessLoop(self.scheduler, "server", lambda _, error: self.raised.append(error))
        self.client = ProcessLoop(self.scheduler, "client", lambda _, error: self.raised.append(error))
        self.door = Door()

    def serve(self) -> None:
        async def open_door() -> None:
            door = await self.network.bind(self.server)(PortPlan("broker", self.door.admit, 10_911), ())  # type: ignore[arg-type]
            door.listen()
            door.accept()

        self.server.create_task(open_door())
        self.run(10)

    def run(self, ms: int) -> None:
        self.scheduler.run(self.scheduler.now_us + ms * 1_000)

    def connect(self, timeout_s: float = 5.0) -> tuple[Peer, "asyncio.Task[None]"]:
        peer = Peer()
        connector = self.network.connector(self.client, "c")

        async def work() -> None:
            async with asyncio.timeout(timeout_s):
                await connector.connect(ADDRESS, lambda: peer)

        return peer, self.client.create_task(work())

    def joined(self) -> tuple[Peer, Peer, End]:
        self.serve()
        peer, task = self.connect()
        self.run(100)
        assert task.exception() is None
        return peer, self.door.served[-1], self.network.connections()[0]


def test_bytes_arrive_once_in_order_and_in_pieces() -> None:
    town = Town()
    here, there, _ = town.joined()
    sent = b"".join(b"%05d" % number for number in range(2_000))
    for start in range(0, len(sent), 100):
        here.transport.write(sent[start : start + 100])
        there.transport.write(sent[start : start + 100])
    town.run(1_000)
    assert there.got == here.got == sent
    assert there.pieces > 10
    assert not town.raised


def test_closing_delivers_what_was_written_before() -> None:
    town = Town()
    here, there, _ = town.joined()
    here.transport.write(b"last words")
    here.transport.close()
    town.run(100)
    assert there.got == b"last words"
    assert there.lost == [None]
    assert here.lost == [None]


def test_a_reset_ends_both_sides_and_loses_bytes() -> None:
    lost = 0
    for seed in range(5):
        town = Town(Manners(delay_us=5_000, cut_chance=1.0), seed)
        here, there, end = town.joined()
        for _ in range(20):
            here.transport.write(b"x" * 100)
        town.network.reset(end)
        town.run(1_000)
        assert there.got + b"x" * (2_000 - len(there.got)) == b"x" * 2_000
        lost += 2_000 - len(there.got)
        assert [type(error) for error in (*here.lost, *there.lost)] == [ConnectionResetError] * 2
    assert lost > 0


@pytest.mark.parametrize(("to_server", "to_client"), [(True, False), (False, True), (True, True)])
def test_a_partition_holds_bytes_until_it_heals(to_server: bool, to_client: bool) -> None:
    town = Town()
    here, there, _ = town.joined()
    town.network.partition("c", to_server=to_server, to_client=to_client)
    here.transport.write(b"up" * 50)
    there.transport.write(b"down" * 50)
    town.run(10_000)
    assert (there.got, here.got) == (b"" if to_server else b"up" * 50, b"" if to_client else b"down" * 50)
    town.network.heal("c")
    town.run(1_000)
    assert (there.got, here.got) == (b"up" * 50, b"down" * 50)


def test_bytes_in_transit_when_a_partition_begins_keep_their_order() -> None:
    town = Town(Manners(delay_us=20_000, cut_chance=1.0))
    here, there, _ = town.joined()
    here.transport.write(b"0123456789" * 10)
    town.run(1)
    town.network.partition("c", to_server=True, to_client=True)
    here.transport.write(b"abcdefghij" * 10)
    town.run(5_000)
    town.network.heal()
    town.run(1_000)
    assert there.got == b"0123456789" * 10 + b"abcdefghij" * 10


def test_connecting_across_a_partition_hangs() -> None:
    town = Town()
    town.serve()
    town.network.partition("c", to_server=True, to_client=True)
    _, task = town.connect(timeout_s=3)
    town.run(5_000)
    assert isinstance(task.exception(), TimeoutError)
    peer, task = town.connect(timeout_s=10)
    town.run(2_500)
    town.network.heal()
    town.run(3_000)
    assert task.exception() is None
    assert peer.transport is not None


def test_connections_without_a_listener_or_when_refused_raise_an_error() -> None:
    town = Town()
    _, task = town.connect()
    town.run(100)
    assert isinstance(task.exception(), ConnectionRefusedError)
    town.serve()
    town.network.refuse(1_000_000)
    _, task = town.connect()
    town.run(100)
    assert isinstance(task.exception(), ConnectionRefusedError)


def test_a_full_gateway_closes_new_connections() -> None:
    town = Town()
    town.serve()
    town.door.is_full = True
    peer, _ = town.connect()
    town.run(100)
    assert peer.lost == [None]
    assert town.door.served == []


def test_what_a_killed_process_had_written_arrives() -> None:
    town = Town()
    here, there, _ = town.joined()
    here.transport.write(b"sent")
    town.client.kill()
    town.network.process_died(town.client)
    town.run(100)
    assert there.got == b"sent"
    assert len(there.lost) == 1
    assert here.lost == []


def test_a_client_notices_a_power_loss_when_it_writes_after_power_is_back() -> None:
    town = Town()
    here, _, _ = town.joined()
    town.server.kill()
    town.network.server_is_up = False
    town.network.power_lost(town.server)
    town.run(10_000)
    here.transport.write(b"anybody?")
    town.run(10_000)
    assert here.lost == []
    town.network.power_back()
    town.run(1_000)
    assert [type(error) for error in here.lost] == [ConnectionResetError]


def test_a_reader_that_stops_fills_the_window_and_the_writer_is_paused() -> None:
    town = Town(Manners(window_bytes=1_000))
    here, there, _ = town.joined()
    there.transport.pause_reading()
    here.transport.write(b"x" * 2_000)
    town.run(1_000)
    assert here.full == [True]
    assert there.got == b""
    there.transport.resume_reading()
    town.run(1_000)
    assert here.full == [True, False]
    assert there.got == b"x" * 2_000


def test_a_stall_delays_one_direction() -> None:
    town = Town()
    here, there, end = town.joined()
    town.network.stall(end, to_server=True, for_us=3_000_000)
    here.transport.write(b"up")
    there.transport.write(b"down")
    town.run(1_000)
    assert (there.got, here.got) == (b"", b"down")
    town.run(3_000)
    assert there.got == b"up"


def test_a_repeated_request_arrives_on_its_own_connection() -> None:
    town = Town()
    town.joined()
    ghost = ProcessLoop(town.scheduler, "ghost", lambda _, error: town.raised.append(error))
    town.network.repeat(ghost, b"again", 10_911)
    town.run(100)
    assert [peer.got for peer in town.door.served] == [b"", b"again"]
    assert not town.raised


def test_closing_with_unread_bytes_resets() -> None:
    town = Town()
    peer, served, _ = town.joined()
    peer.transport.pause_reading()
    served.transport.write(b"unread" * 10)
    town.run(100)
    peer.transport.close()
    town.run(100)
    assert [type(error) for error in served.lost] == [ConnectionResetError]


def test_a_paused_writer_that_does_not_read_is_notified_of_the_end() -> None:
    """A broker does not read from a client that does not read its responses; when that client dies, the connection must end."""
    town = Town()
    peer, served, _ = town.joined()
    peer.transport.pause_reading()
    served.transport.write(bytes(200_000))
    assert served.full == [True]
    served.transport.pause_reading()
    town.run(100)
    town.client.kill()
    town.network.process_died(town.client)
    town.run(100)
    assert [type(error) for error in served.lost] == [ConnectionResetError]


def test_writing_to_a_closed_port_is_answered_with_a_reset() -> None:
    town = Town()
    peer, served, _ = town.joined()
    served.transport.pause_reading()
    peer.transport.close()
    town.run(100)
    assert served.lost == []
    served.transport.write(bytes(200_000))
    town.run(100)
    assert [type(error) for error in served.lost] == [ConnectionResetError]
