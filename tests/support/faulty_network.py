"""A network in memory that keeps TCP's guarantees and no more, and breaks what TCP permits to break.

It replaces both ends: ``AsyncClient`` opens connections with ``connector``, and ``Broker`` creates its ports with ``bind``. Bytes
arrive in order, once, after a delay, in pieces cut anywhere; or the connection ends, and of the bytes in transit either end gets
any prefix. Connections overtake each other. A connection that nobody reads from fills up and pauses its writer
(``pause_writing``).

    reset        a connection ends for both sides, with bytes lost in either direction
    partition    between one machine and the server, in one direction or both: bytes wait, new connections hang
    stall        one direction of one connection stops for a while
    refuse       connections are refused for a while
    repeat       bytes of a connection arrive once more, on another connection, as from a client's earlier incarnation
    process_died a killed process: its machine closes its connections, what it had written still arrives
    power_lost   a machine is down: nobody is notified, until they write to it after it is up again

The network itself draws only delays and cuts at random. Its user decides which faults happen and when, and counts them.
The same seed and the same calls give the same run.
"""

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from halfmq.broker.listener import Bind, BoundPort, PortPlan
from halfmq.broker.peers.peers import Admit, Rejected
from halfmq.client.connector import Connector
from halfmq.model.address import Address
from tests.support.virtual_loop import ProcessLoop, Scheduler

#: Delay until a packet that opens a connection is sent again.
SYN_AGAIN_US: Final = 1_000_000
#: Interval at which connections in the backlog, between ``listen`` and ``accept``, are checked.
_BACKLOG_LOOK_US: Final = 25_000


@dataclass(frozen=True, slots=True)
class Manners:
    """The behaviour of the network without faults. Times in microseconds, probabilities from 0 to 1."""

    delay_us: int = 200
    jitter_us: int = 800
    #: Probability that a packet takes up to ``spike_us`` longer.
    spike_chance: float = 0.01
    spike_us: int = 200_000
    #: Probability that a write is cut into several pieces.
    cut_chance: float = 0.2
    #: Probability that a reader gets everything at once, not piece by piece.
    joined_chance: float = 0.7
    #: Bytes in transit in one direction above which the writer is paused.
    window_bytes: int = 65_536


class Tap(Protocol):
    """Observes what clients write and read."""

    def wrote(self, end: "End", data: bytes) -> None:
        """The client writes whole frames."""
        ...

    def hears(self, end: "End", data: bytes) -> None:
        """These bytes are about to be passed to the client."""
        ...


class _Finished:
    """Marks the end of a stream."""

    def __init__(self, error: type[OSError] | None) -> None:
        self.error = error


FIN: Final = _Finished(None)
RESET: Final = _Finished(ConnectionResetError)
_Item = bytes | _Finished


class _Pipe:
    """One direction of one connection."""

    __slots__ = (
        "_flying", "_held", "_last_us", "_life", "_network", "blocked", "buffered", "dead", "not_before_us", "reader", "writer",
        "writer_waits",
    )  # fmt: skip

    def __init__(self, network: "FaultyNetwork", writer: "End", reader: "End") -> None:
        self._network = network
        self.writer = writer
        self.reader = reader
        self.blocked = False
        #: The reader is gone.
        self.dead = False
        self.not_before_us = 0
        #: Bytes written and not yet read.
        self.buffered = 0
        self.writer_waits = False
        self._flying: deque[_Item] = deque()
        self._held: list[_Item] = []
        self._last_us = 0
        #: Incremented by ``drop``, so that arrivals that were scheduled before are ignored.
        self._life = 0

    def send(self, data: bytes) -> None:
        if self.dead and not (self.blocked or self.writer.orphaned):
            # The port no longer exists: the response is a reset.
            self._network.scheduler.call_later(self._network.delay_us(), self.writer.arrived, RESET)
        for piece in self._network.cut(data):
            self.buffered += len(piece)
            self.put(piece)
        if self.buffered > self._network.manners.window_bytes and not self.writer_waits:
            self.writer_waits = True
            self.writer.protocol.pause_writing()

    def put(self, item: _Item) -> None:
        if self.blocked:
            self._held.append(item)
        elif not self.dead:
            network = self._network
            when_us = max(network.scheduler.now_us + network.delay_us(), self._last_us, self.not_before_us)
            self._last_us = when_us
            self._flying.append(item)
            network.scheduler.call_at(when_us, self._arrive, self._life)

    def _arrive(self, life: int) -> None:
        if life == self._life:
            item = self._flying.popleft()
            if not self.dead:
                self.reader.arrived(item)

    def read(self, count: int) -> None:
        self.buffered -= count
        if self.writer_waits and self.buffered <= self._network.manners.window_bytes // 2:
            self.writer_waits = False
            self.writer.process.call_soon(self.writer.writable)

    def block(self) -> None:
        """Nothing arrives until ``unblock``."""
        if not self.blocked:
            self.blocked = True
            self._held = self._take()

    def unblock(self) -> None:
        if self.blocked:
            self.blocked = False
            held, self._held = self._held, []
            for item in held:
                self.put(item)

    def end_with(self, finished: _Finished, rng: random.Random, *, lossy: bool) -> None:
        """End the stream: after the bytes in transit, or (``lossy``) after any prefix of them."""
        items = self._take() if not self.blocked else self._held
        if lossy:
            del items[rng.randint(0, len(items)) :]
        self._held = []
        blocked, self.blocked = self.blocked, False
        if blocked:
            self._held = [*items, finished]
            self.blocked = True
            return
        for item in items:
            self.put(item)
        self.put(finished)

    def drop(self) -> None:
        """The reader is gone."""
        self.dead = True
        self._take()
        self._held.clear()

    @property
    def under_way(self) -> bool:
        return bool(self._flying)

    def _take(self) -> list[_Item]:
        self._life += 1
        items = list(self._flying)
        self._flying.clear()
        return items


class End(asyncio.Transport):
    """One end of a connection: the transport that a client or the broker writes to."""

    def __init__(
        self,
        network: "FaultyNetwork",
        process: ProcessLoop,
        machine: str,
        number: int,
        protocol: Any,
        *,
        is_client: bool,
    ) -> None:
        super().__init__()
        self.network = network
        self.process = process
        #: The client's machine, at both ends: partitions are between machines.
        self.machine = machine
        #: Number of the connection.
        self.number = number
        self.protocol: Any = protocol
        self.is_client = is_client
        self.out: _Pipe
        self.into: _Pipe
        self.lost = False
        #: The machine at the other end went down without notice.
        self.orphaned = False
        self._closing = False
        self._reading = True
        self._read_due = False
        self._inbox: deque[_Item] = deque()

    # --- asyncio.Transport -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not self.process.alive:
            return
        data = bytes(data)
        if self.is_client and self.network.tap is not None:
            self.network.tap.wrote(self, data)
        self.out.send(data)
        if self.orphaned:
            self.network.wrote_to_nobody(self)

    def get_write_buffer_size(self) -> int:
        return self.out.buffered

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing and self.process.alive:
            self._closing = True
            self.out.put(self.last_word)
            self.into.drop()
            self.process.call_soon(self.end, None)

    def abort(self) -> None:
        if not self._closing and self.process.alive:
            self._closing = True
            self.out.end_with(RESET, self.network.rng, lossy=True)
            self.into.drop()
            self.process.call_soon(self.end, None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._look()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        here, there = ("10.0.0.2", 20_000 + self.number), ("10.0.0.1", 10_911)
        match name:
            case "sockname":
                return here if self.is_client else there
            case "peername":
                return there if self.is_client else here
        return default

    # --- calls by the network ----------------------------------------------------------------------------------------

    @property
    def last_word(self) -> _Finished:
        """An end that closes without having read everything resets the connection."""
        return RESET if self.into.buffered else FIN

    def arrived(self, item: _Item) -> None:
        self._inbox.append(item)
        if item is RESET and self.out.writer_waits and not self._reading:
            # A paused writer is notified even if it does not read.
            self.process.call_soon(self.end, ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        else:
            self._look()

    def _look(self) -> None:
        if self._inbox and self._reading and not self._read_due:
            self._read_due = True
            self.process.call_soon(self._read)

    def _read(self) -> None:
        self._read_due = False
        inbox = self._inbox
        if not self._reading or self.lost or self._closing or not inbox:
            return
        data = self._next_data()
        if data:
            self.into.read(len(data))
            if self.is_client and self.network.tap is not None:
                self.network.tap.hears(self, data)
            self.protocol.data_received(data)
        if inbox and isinstance(inbox[0], _Finished) and not self.lost and self._reading:
            error = inbox[0].error
            self.end(None if error is None else error(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        else:
            self._look()

    def _next_data(self) -> bytes:
        inbox = self._inbox
        pieces: list[bytes] = []
        joined = len(inbox) > 1 and self.network.joins()
        while inbox and isinstance(inbox[0], bytes):
            pieces.append(cast(bytes, inbox.popleft()))
            if not joined:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def end(self, error: OSError | None) -> None:
        """The connection is over for this end."""
        if not self.lost:
            self.lost = True
            self._closing = True
            self.into.drop()
            self.network.forget(self)
            self.protocol.connection_lost(error)

    def writable(self) -> None:
        if not self.lost:
            self.protocol.resume_writing()

    def vanish(self) -> None:
        """The process of this end no longer exists."""
        self.lost = True
        self._closing = True
        self.into.drop()
        self.network.forget(self)


class _Door:
    """A port of the server."""

    def __init__(self, network: "FaultyNetwork", process: ProcessLoop, admit: Admit, port: int) -> None:
        self.port = port
        self.addresses = [f"network:{port}"]
        self.process = process
        self.admit = admit
        self.listens = False
        self.accepts = False
        self._network = network

    def listen(self) -> None:
        self.listens = True

    def accept(self) -> None:
        self.accepts = True

    def close(self) -> None:
        self.listens = self.accepts = False
        if self._network.doors.get(self.port) is self:
            del self._network.doors[self.port]


class _ClientConnector:
    """Opens the connections of one client process."""

    def __init__(self, network: "FaultyNetwork", process: ProcessLoop, machine: str) -> None:
        self._network = network
        self._process = process
        self._machine = machine

    async def connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        answer: asyncio.Future[None] = self._process.create_future()
        self._network.knock(self._process, self._machine, address.port, protocol, answer)
        await answer


class _Ghost(asyncio.Protocol):
    """A client that sends bytes once and ignores the responses."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._data)


class FaultyNetwork:
    """A network between many client machines and one server machine."""

    def __init__(self, scheduler: Scheduler, seed: object, manners: Manners | None = None) -> None:
        self.scheduler = scheduler
        self.rng = random.Random(f"{seed}/network")
        self.manners = manners or Manners()
        self.tap: Tap | None = None
        self.doors: dict[int, _Door] = {}
        #: For repeated requests: done when their connection is open or refused.
        self._repeats: set[asyncio.Future[None]] = set()
        #: Whether the server's machine has power.
        self.server_is_up = True
        self._random = self.rng.random
        self._numbers = 0
        #: Open ends of both sides, in the order in which they were opened.
        self._ends: dict[End, None] = {}
        #: Client machine -> (bytes from it are held back, bytes to it are held back).
        self._partitions: dict[str, tuple[bool, bool]] = {}
        self._refuse_until_us = 0

    # --- interfaces of the two sides ---------------------------------------------------------------------------------

    def connector(self, process: ProcessLoop, machine: str) -> Connector:
        return _ClientConnector(self, process, machine)

    def bind(self, process: ProcessLoop) -> Bind:
        async def bind(plan: PortPlan, hosts: Sequence[str]) -> BoundPort:
            assert plan.port not in self.doors, f"two listen on {plan.port}"
            door = self.doors[plan.port] = _Door(self, process, plan.admit, plan.port)
            return door

        return bind

    # --- faults ------------------------------------------------------------------------------------------------------

    def connections(self, machine: str | None = None) -> list[End]:
        """The client ends of open connections."""
        return [end for end in self._ends if end.is_client and machine in (None, end.machine)]

    def reset(self, client: End) -> None:
        """A connection ends; a part of the bytes in transit is lost."""
        client.out.end_with(RESET, self.rng, lossy=True)
        client.into.end_with(RESET, self.rng, lossy=True)

    def partition(self, machine: str, *, to_server: bool, to_client: bool) -> None:
        """From now on nothing from ``machine`` arrives, or nothing to it, or both."""
        self._partitions[machine] = to_server, to_client
        for end in self.connections(machine):
            self._partitioned(end)

    def heal(self, machine: str | None = None) -> None:
        """End partitions and refusals."""
        for name in [name for name in self._partitions if machine in (None, name)]:
            del self._partitions[name]
        for end in self.connections(machine):
            end.out.unblock()
            end.into.unblock()
        self._refuse_until_us = 0

    @property
    def under_way(self) -> bool:
        """Whether bytes written to the server will still arrive, or a repeated request is still connecting."""
        return bool(self._repeats) or any(end.into.under_way for end in self._ends if not end.is_client)

    def stall(self, client: End, *, to_server: bool, for_us: int) -> None:
        pipe = client.out if to_server else client.into
        pipe.not_before_us = self.scheduler.now_us + for_us

    def refuse(self, for_us: int) -> None:
        self._refuse_until_us = self.scheduler.now_us + for_us

    def repeat(self, ghost: ProcessLoop, data: bytes, port: int) -> None:
        """Send ``data`` once more on its own connection, which is lost together with the response."""
        answer = ghost.create_future()
        self._repeats.add(answer)
        answer.add_done_callback(self._repeats.discard)
        answer.add_done_callback(lambda done: done.exception())  # refused: then it is not repeated
        self.knock(ghost, ghost.name, port, lambda: _Ghost(data), answer)

    def process_died(self, process: ProcessLoop) -> None:
        """A process was killed: its machine closes its connections, and what it had written still arrives."""
        for end in [end for end in self._ends if end.process is process]:
            finished = end.last_word
            end.vanish()
            end.out.end_with(finished, self.rng, lossy=False)
        self._close_doors(process)

    def power_lost(self, process: ProcessLoop) -> None:
        """The machine is down. Bytes in transit may still arrive."""
        for end in [end for end in self._ends if end.process is process]:
            other = end.out.reader
            if self._random() < 0.5:
                end.out._take()
            end.vanish()
            other.orphaned = True
        self._close_doors(process)

    def power_back(self) -> None:
        """The server's machine is up again: it does not know old connections, and answers writes to them with a reset."""
        self.server_is_up = True
        for end in [end for end in self._ends if end.orphaned and end.out.buffered]:
            self.wrote_to_nobody(end)

    def _close_doors(self, process: ProcessLoop) -> None:
        for door in [door for door in self.doors.values() if door.process is process]:
            door.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def delay_us(self) -> int:
        manners = self.manners
        draw = self._random()
        delay_us = manners.delay_us + int(draw * manners.jitter_us)
        if manners.spike_chance and self._random() < manners.spike_chance:
            delay_us += int(self._random() * manners.spike_us)
        return delay_us

    def cut(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._random() >= self.manners.cut_chance:
            return [data]
        places = sorted({self.rng.randrange(1, len(data)) for _ in range(self.rng.randint(1, 3))})
        return [data[start:stop] for start, stop in zip([0, *places], [*places, len(data)], strict=True)]

    def joins(self) -> bool:
        return self._random() < self.manners.joined_chance

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    def wrote_to_nobody(self, end: End) -> None:
        """An end writes to a machine that lost its power; once that is up again, it answers with a reset."""
        if self.server_is_up and not end.lost:
            self.scheduler.call_later(self.delay_us(), self._tell_reset, end)

    def _tell_reset(self, end: End) -> None:
        if not end.lost and self.server_is_up:
            end.orphaned = False
            end.into.dead = False
            end.into.put(RESET)

    def knock(
        self,
        process: ProcessLoop,
        machine: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        answer: "asyncio.Future[None]",
    ) -> None:
        self.scheduler.call_later(self.delay_us(), self._knocked, process, machine, port, protocol, answer)

    def _knocked(
        self,
        process: ProcessLoop,
        machine: str,
        port: int,
        protocol: Callable[[], asyncio.Protocol],
        answer: "asyncio.Future[None]",
    ) -> None:
        if not process.alive or answer.done():
            return
        door = self.doors.get(port)
        hindered = any(self._partitions.get(machine, ())) or not self.server_is_up
        waits = door is not None and door.listens and (not door.accepts or door.process.paused)
        if hindered or waits:
            again_us = SYN_AGAIN_US if hindered else _BACKLOG_LOOK_US
            self.scheduler.call_later(again_us, self._knocked, process, machine, port, protocol, answer)
            return
        if door is None or not door.listens or self.scheduler.now_us < self._refuse_until_us:
            self.scheduler.call_later(self.delay_us(), self._refused, process, answer)
            return
        self._open(process, machine, door, protocol, answer)

    def _refused(self, process: ProcessLoop, answer: "asyncio.Future[None]") -> None:
        if process.alive and not answer.done():
            answer.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))

    def _open(
        self,
        process: ProcessLoop,
        machine: str,
        door: _Door,
        protocol: Callable[[], asyncio.Protocol],
        answer: "asyncio.Future[None]",
    ) -> None:
        self._numbers += 1
        admitted = door.admit(machine)
        full = isinstance(admitted, Rejected)
        served = asyncio.Protocol() if isinstance(admitted, Rejected) else admitted
        client = End(self, process, machine, self._numbers, None, is_client=True)
        server = End(self, door.process, machine, self._numbers, served, is_client=False)
        client.pause_reading()
        client.out = server.into = _Pipe(self, client, server)
        server.out = client.into = _Pipe(self, server, client)
        self._ends[client] = self._ends[server] = None
        self._partitioned(client)
        door.process.call_soon(
            server.close if full else lambda: None if server.lost else served.connection_made(server)
        )
        self.scheduler.call_later(self.delay_us(), self._opened, client, protocol, answer)

    def _opened(self, client: End, protocol: Callable[[], asyncio.Protocol], answer: "asyncio.Future[None]") -> None:
        client.process.call_soon(self._made, client, protocol, answer)

    def _made(self, client: End, protocol: Callable[[], asyncio.Protocol], answer: "asyncio.Future[None]") -> None:
        if answer.done():  # cancelled
            client.protocol = asyncio.Protocol()
            client.abort()
            return
        client.protocol = protocol()
        client.protocol.connection_made(client)
        answer.set_result(None)
        client.resume_reading()

    def _partitioned(self, client: End) -> None:
        to_server, to_client = self._partitions.get(client.machine, (False, False))
        if to_server:
            client.out.block()
        if to_client:
            client.into.block()
