"""One connection without sockets: one write for each read, frames before a broken one, and when reading stops."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

from tests.support.raw_client import frame

from halfmq.broker.peers.peer import LARGE_BODIES_BYTES, Peer
from halfmq.broker.peers.peers import BACKLOG_MAX, Peers
from halfmq.broker.remoting.gateway import Connection
from halfmq.wire.remoting.frame import BrokenFrame


class Transport:
    def __init__(self, peer: Any = ("10.0.0.7", 4_444)) -> None:
        self.writes: list[bytes] = []
        self.reading = True
        self._peer = peer

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 70_000


class Loop:
    """What is called soon waits in ``soon``."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        pass

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)


class Echo:
    """A gateway that answers each frame with its body."""

    users = None

    def __init__(self) -> None:
        self.lost: list[BrokenFrame] = []
        self.gone: list[int] = []
        self.drained_ones: list[int] = []
        self.unfinished_ones: list[tuple[int, int, bool]] = []
        self.peers = Peers(Loop(), clock=Loop().time)  # type: ignore[arg-type]
        self.peers.on_gone = self.gone.append
        self.peers.on_drained = lambda peer: self.drained_ones.append(peer.number)
        self.peers.unfinished_frames.note = self.unfinished  # type: ignore[method-assign]

    def frame(self, connection: Connection, frame: bytes) -> None:
        connection.send(frame[4:])

    def broken(self, connection: Connection, error: BrokenFrame) -> None:
        self.lost.append(error)

    def unfinished(self, peer: Peer, held: int, missing: int, *, another: bool) -> None:
        self.unfinished_ones.append((held, missing, another))


def connected(peer: Any = ("10.0.0.7", 4_444)) -> tuple[Connection, Transport, Echo]:
    gateway, transport = Echo(), Transport(peer)
    connection = Connection(gateway, 9)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, gateway


def test_answers_of_one_read_leave_in_one_write() -> None:
    connection, transport, _ = connected()
    connection.data_received(b"".join(frame(b"", b"%d;" % number) for number in range(50)))
    assert transport.writes == [b"".join(b"%d;" % number for number in range(50))]


def test_frames_before_a_broken_one_are_handled() -> None:
    connection, transport, gateway = connected()
    connection.data_received(frame(b"", b"fine") + b"\xff\xff\xff\xff")
    assert transport.writes == [b"fine"]
    assert len(gateway.lost) == 1


def test_peer_is_packed_for_messages() -> None:
    assert connected()[0].born_host == bytes((10, 0, 0, 7)) + (4_444).to_bytes(4, "big")
    assert connected(("::1", 4_444, 0, 0))[0].born_host == bytes(15) + b"\x01" + (4_444).to_bytes(4, "big")
    assert connected("/run/socket")[0].born_host == bytes(8)
    assert connected(None)[0].born_host == bytes(8)
    named = connected(("peer.example", 4_444))[0]
    assert (named.born_host, named.address) == (bytes(8), "peer.example:4444"), (
        "no address to store, but a name to tell"
    )


def test_reading_stops_while_the_peer_or_the_gateway_cannot_follow() -> None:
    connection, transport, gateway = connected()
    gateway.peers.waiting = BACKLOG_MAX
    connection.data_received(frame(b"", b"x"))
    assert not transport.reading
    connection.pause_writing()
    connection.resume()
    assert not transport.reading, "the peer still does not read"
    connection.resume_writing()
    assert transport.reading


def test_nothing_is_sent_to_a_peer_that_is_gone() -> None:
    connection, transport, gateway = connected()
    connection.connection_lost(None)
    connection.send(b"late")
    gateway.peers.flush()
    assert transport.writes == []
    assert gateway.gone == [9]


def test_read_marks_the_connection_as_alive() -> None:
    connection, _, gateway = connected()
    gateway.peers.generation = 8
    connection.data_received(b"")
    assert connection.generation == 8


def test_frames_behind_a_full_transport_wait_and_keep_their_order() -> None:
    """Goal: what was read but not handled when the peer stopped to take answers is handled when it goes on, in order."""

    class Small(Transport):
        """Full at the first write, as one with a large answer in it."""

        def write(self, data: bytes) -> None:
            super().write(data)
            connection.pause_writing()

    gateway, transport = Echo(), Small()
    connection = Connection(gateway, 9)  # type: ignore[arg-type]
    connection.connection_made(transport)  # type: ignore[arg-type]
    answer = gateway.frame

    def large(connection: Connection, frame: bytes) -> None:
        answer(connection, frame)
        connection.flush_if_large(LARGE_BODIES_BYTES)

    connection._handle = large
    connection.data_received(b"".join(frame(b"", b"%d" % number) for number in range(4)))
    assert transport.writes == [b"0"]
    assert not transport.reading
    connection.data_received(frame(b"", b"4"))
    for number in range(1, 5):
        connection.resume_writing()
        assert transport.writes[-1] == b"%d" % number
    assert not gateway.drained_ones
    connection.resume_writing()
    assert transport.reading
    assert gateway.drained_ones == [9]
    assert len(transport.writes) == 5


def test_bodies_collect_until_they_are_many() -> None:
    connection, transport, gateway = connected()
    connection.send(b"small")
    connection.flush_if_large(LARGE_BODIES_BYTES - 1)
    assert transport.writes == []
    connection.send(b", and one more")
    connection.flush_if_large(1)
    assert transport.writes == [b"small, and one more"]
    gateway.peers.flush()
    assert len(transport.writes) == 1


def test_unfinished_frames_are_told_and_whole_ones_are_not() -> None:
    connection, _, gateway = connected()
    whole = frame(b"", b"x" * 92)
    connection.data_received(whole + whole)
    assert gateway.unfinished_ones == []
    connection.data_received(whole[:3])
    connection.data_received(whole[3:60])
    connection.data_received(whole[60:] + whole[:50])
    connection.data_received(whole[50:])
    assert gateway.unfinished_ones == [(3, 1, False), (60, 40, False), (50, 50, True), (0, 0, True)]


def test_what_takes_long_is_handled_in_parts_and_keeps_its_order() -> None:
    """Each request takes 2 ms: four are handled, then three, and the rest waits for the loop's next rounds."""
    connection, _, gateway = connected()
    now = [0.0]
    gateway.peers.intake.clock = lambda: now[0]
    handled: list[bytes] = []

    def slow(connection: Connection, frame: bytes) -> None:
        now[0] += 0.002
        handled.append(frame)

    connection._handle = slow
    frames = [b"%08d" % number for number in range(10)]
    connection.data_received(b"".join(len(frame).to_bytes(4) + frame for frame in frames))
    assert (len(handled), connection.awaits_turn) == (4, True)
    loop = gateway.peers.intake._loop
    for count in (7, 10, 10):
        soon, loop.soon = loop.soon, []  # type: ignore[attr-defined]
        for call in soon:
            call()
        assert len(handled) == count
    assert [bytes(frame)[-8:] for frame in handled] == frames
    assert not connection.awaits_turn
    assert gateway.peers.intake.later == 0


def test_reading_goes_on_when_the_last_of_all_reasons_against_it_is_gone() -> None:
    """Method: a connection that is paused for all of them, which end in every order; and one more frame was received meanwhile, which is
    handled as soon as the client reads its responses and the connection has its turn."""
    orders = 0
    for order in permutations(range(4)):
        connection, transport, echo = connected()
        connection.pause_writing()
        connection.wait_for_turn()
        connection.wait()
        echo.peers.waiting = BACKLOG_MAX
        connection.data_received(frame(b"x"))
        assert (transport.reading, connection.is_full, connection.awaits_turn) == (False, True, True)
        ends = (connection.resume_writing, connection.take_turn, connection.continue_reading, connection.resume)
        for place, number in enumerate(order):
            assert not transport.reading, (order, place)
            ends[number]()
            assert connection.is_full == (0 not in order[: place + 1])
            assert connection.awaits_turn == (1 not in order[: place + 1])
            handled = {0, 1} <= set(order[: place + 1])
            assert (connection.outgoing_bytes()[0] == 70_000) == handled, (order, place)
        assert transport.reading, order
        orders += 1
    assert orders == 24


def test_frames_that_come_before_its_turn_wait_for_it() -> None:
    connection, transport, echo = connected()
    connection.wait_for_turn()
    connection.data_received(frame(b"", b"early"))
    assert transport.writes == []
    connection.take_turn()
    echo.peers.flush()
    assert transport.writes == [b"early"]


def test_a_request_that_ends_the_turn_leaves_the_rest_of_its_read_to_the_next() -> None:
    connection, transport, echo = connected()
    answer = echo.frame

    def last(connection: Connection, frame: bytes) -> None:
        answer(connection, frame)
        if frame.endswith(b"2"):
            connection.wait_for_turn()

    connection._handle = last
    connection.data_received(b"".join(frame(b"", b"%d" % number) for number in range(5)))
    assert transport.writes == [b"012"]
    connection.take_turn()
    echo.peers.flush()
    assert transport.writes == [b"012", b"34"]
