"""Requests to all brokers behind a URL, for commands that halfmq's brokers and Apache RocketMQ's answer alike.

The URL names name servers, which say which brokers there are; a halfmq broker is its own name server, on both of its ports. There is one
connection per address, and nothing is sent again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn, Self, TypeVar

from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import AT_ONCE_MAX, STATUS_OF_CODE, Commands
from halfmq.client.blocking import Answer, Connections, NameServers, Unavailable
from halfmq.model.address import Address, parse_url
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.route import Route

T = TypeVar("T")

#: Name prefixes of topics that belong to groups or to RocketMQ itself.
_SYSTEM: Final = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "rmq_sys_", "CID_")
_SYSTEM_NAMES: Final = frozenset(
    {"TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest", "SCHEDULE_TOPIC_XXXX"}
)


class Broker(NamedTuple):
    """A master. ``str`` gives its name."""

    name: str
    address: Address

    def __str__(self) -> str:
        return self.name


class Cluster:
    """The brokers behind a URL. A context manager, which closes the connections. Methods print an error and raise typer.Exit."""

    def __init__(self, commands: Commands, url: str, timeout_s: float) -> None:
        self._commands = commands
        with commands.reported():
            parsed = parse_url(url)
        self._connections = Connections(parsed.security, timeout_s=timeout_s)
        self._names = NameServers(parsed, self._connections)
        self._servers = parsed.servers
        self._brokers: dict[str, Broker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.close()

    # --- what there is

    def brokers(self) -> list[Broker]:
        """All masters, by name."""
        if not self._brokers:
            with self._reported():
                found = self._names.registered()
            for name, data in found.items():
                if data.master is None:
                    self._commands.fail(f"broker {name} has no usable address: {data.master_text}", ExitStatus.FAILED)
                self._brokers[name] = Broker(name, data.master)
            if not self._brokers:
                self._commands.fail("the name servers know no broker", ExitStatus.FAILED)
        return [self._brokers[name] for name in sorted(self._brokers)]

    def topics(self) -> list[str]:
        """Names of all topics, also of those of groups and of RocketMQ itself (``is_system``)."""
        with self._reported():
            return sorted(self._names.topics())

    def route(self, topic: str) -> Route | None:
        """Where the topic is; None: it does not exist."""
        with self._reported():
            return self._names.route(topic)

    def brokers_of(self, topic: str) -> list[Broker]:
        """The masters that have the topic. Exits with NOT_FOUND if it does not exist."""
        route = self.route(topic)
        if route is None:
            self._commands.fail(f"there is no topic {topic}", ExitStatus.NOT_FOUND)
        return [Broker(name, address) for name, address in sorted(route.masters().items())]

    # --- requests

    def ask(
        self,
        broker: Broker,
        code: int,
        fields: Mapping[str, object],
        body: bytes = b"",
        *,
        changes: bool = False,
        absent: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Answer | None:
        """The response. ``absent``: response codes for which it is None. ``results``: codes that are returned besides SUCCESS.
        ``changes``: without a response it is unknown what happened.
        """
        (answer,) = self.each(broker, code, [fields], body, changes=changes, absent=absent, results=results)
        return answer

    def read(self, broker: Broker, code: int, fields: Mapping[str, object], decode: Callable[[bytes], T]) -> T:
        """The body of the response, decoded."""
        answer = self.ask(broker, code, fields)
        assert answer is not None
        with self._commands.reported():
            return decode(answer.body)

    def each(
        self,
        broker: Broker,
        code: int,
        each: Sequence[Mapping[str, object]],
        body: bytes = b"",
        *,
        changes: bool = False,
        absent: Sequence[int] = (),
        results: Sequence[int] = (),
    ) -> Iterator[Answer | None]:
        """One response for each element of ``each``, in this order; the requests are pipelined. Otherwise as ``ask``."""
        left, sent = iter(each), deque[int]()
        with self._reported():
            connection = self._connections.connected(broker.address)
        while True:
            with self._reported(changes=changes):
                while len(sent) < AT_ONCE_MAX and (fields := next(left, None)) is not None:
                    sent.append(connection.send(code, fields, body))
                if not sent:
                    return
                answer = connection.receive(sent.popleft())
            if answer.code in absent:
                yield None
            elif answer.code == ResponseCode.SUCCESS or answer.code in results:
                yield answer
            else:
                self._refused(answer, broker)

    def ask_name_servers(self, code: int, fields: Mapping[str, object], absent: Sequence[int] = ()) -> None:
        """Ask every name server of the URL, each for itself, to change something."""
        for server in self._servers:
            self.ask(Broker(str(server), server), code, fields, changes=True, absent=absent)

    def _refused(self, answer: Answer, broker: Broker) -> NoReturn:
        status = STATUS_OF_CODE.get(answer.code, ExitStatus.FAILED)
        self._commands.fail(f"broker {broker}: {answer.remark or 'no reason given'} (code {answer.code})", status)

    @contextmanager
    def _reported(self, *, changes: bool = False) -> Iterator[None]:
        with self._commands.reported():
            try:
                yield
            except Unavailable as error:
                if changes:
                    self._commands.fail(f"no response: {error}", ExitStatus.UNKNOWN_OUTCOME)
                self._commands.fail(f"{error} (check that the broker runs and that --url is right)", ExitStatus.FAILED)


def is_system(topic: str) -> bool:
    """Whether the topic is a group's own, such as its dead letters, or RocketMQ's."""
    return topic.startswith(_SYSTEM) or topic in _SYSTEM_NAMES
