"""One connection without sockets: one write for each read, frames before a broken one, and when reading stops."""

from typing import Any

from tests.support.raw_client import frame

from halfmq.broker.connection import Connection
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


class Echo:
    """A gateway that answers each frame with its body."""

    def __init__(self) -> None:
        self.generation = 3
        self.busy = False
        self.lost: list[BrokenFrame] = []
        self.gone: list[int] = []
        self._dirty: list[Connection] = []

    def opened(self, connection: Connection) -> None:
        pass

    def frame(self, connection: Connection, frame: bytes) -> None:
        connection.send(frame[4:])

    def overloaded(self, connection: Connection) -> bool:
        return self.busy

    def broken(self, connection: Connection, error: BrokenFrame) -> None:
        self.lost.append(error)

    def dirty(self, connection: Connection) -> None:
        self._dirty.append(connection)

    def flush(self) -> None:
        for connection in self._dirty:
            connection.flush()
        self._dirty.clear()

    def closed(self, connection: Connection, error: BaseException | None) -> None:
        self.gone.append(connection.number)


def connected(peer: Any = ("10.0.0.7", 4_444)) -> tuple[Connection, Transport, Echo]:
    gateway, transport = Echo(), Transport(peer)
    connection = Connection(gateway, 9)
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport, gateway


def test_answers_of_one_read_leave_in_one_write() -> None:
    connection, transport, _ = connected()
    connection.data_received(b"".join(frame(b"", b"%d;" % number) for number in range(50)))
    assert transport.writes == [b"".join(b"%d;" % number for number in range(50))]


def test_frames_arrive_byte_by_byte() -> None:
    connection, transport, _ = connected()
    for byte in frame(b"", b"one") + frame(b"", b"two"):
        connection.data_received(bytes((byte,)))
    assert transport.writes == [b"one", b"two"]


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
    assert (named.born_host, named.peer) == (bytes(8), "peer.example:4444"), "no address to store, but a name to tell"


def test_reading_stops_while_the_peer_or_the_gateway_cannot_follow() -> None:
    connection, transport, gateway = connected()
    gateway.busy = True
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
    gateway.flush()
    assert transport.writes == []
    assert gateway.gone == [9]


def test_read_marks_the_connection_as_alive() -> None:
    connection, _, gateway = connected()
    gateway.generation = 8
    connection.data_received(b"")
    assert connection.generation == 8
