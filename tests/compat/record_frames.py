"""Frames of the stock Java client and broker, as they cross a socket, for ``tests/vectors/java_clients.txt``.

    python -m tests.compat.record_frames 5.5.0        prints the lines of this version: of each kind the shortest frame

The programs of ``java_runs`` talk to a stock broker through two forwarders, with JSON and with binary headers: the name server has another
port for them, and the broker tells clients to use 127.0.0.2, behind which it listens on 127.0.0.1. A kind that did not cross is an error.
"""

import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.fields import EndFields, SendFields
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.header import decode
from halfmq.wire.remoting.heartbeat import decode_heartbeat
from tests.compat.java_runs import BINARY, JSON, QUICK_REBALANCE, run
from tests.compat.stock_broker import StockBroker
from tests.support.ports import HOST, free_port

#: What clients are told of the broker. Linux has all of 127.0.0.0/8.
_TOLD: Final = "127.0.0.2"
_PROGRAMS: Final = ("Tags", "Retry", "Lookup", "Pull", "Orderly", "Transactions")
_SETTINGS: Final = {
    "transactionCheckInterval": "1000", "transactionTimeOut": "1000", "brokerIP1": _TOLD, "bindAddress": HOST,
}  # fmt: skip

_COMMANDS: Final = {
    RequestCode.PULL_MESSAGE: "pull", RequestCode.UPDATE_CONSUMER_OFFSET: "offset_update", RequestCode.QUERY_CONSUMER_OFFSET: "offset_query",
    RequestCode.CONSUMER_SEND_MSG_BACK: "send_back", RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "members_changed",
    RequestCode.UNREGISTER_CLIENT: "unregister", RequestCode.QUERY_MESSAGE: "query_key", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "search_time",
    RequestCode.LOCK_BATCH_MQ: "lock", RequestCode.CHECK_TRANSACTION_STATE: "check",
}  # fmt: skip
_VERDICTS: Final = {8: "commit", 12: "rollback", 0: "unknown"}
_ANSWERS: Final = {
    (RequestCode.SEND_MESSAGE_V2, 0): "send_answer", (RequestCode.HEART_BEAT, 0): "heartbeat_answer",
    (RequestCode.PULL_MESSAGE, 0): "pull_found", (RequestCode.PULL_MESSAGE, 19): "pull_nothing",
    (RequestCode.PULL_MESSAGE, 21): "pull_moved", (RequestCode.QUERY_CONSUMER_OFFSET, 0): "offset_answer",
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, 0): "members", (RequestCode.LOCK_BATCH_MQ, 0): "lock_answer",
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, 0): "route",
    (RequestCode.GET_ROUTEINFO_BY_TOPIC, int(ResponseCode.TOPIC_NOT_EXIST)): "route_missing",
}  # fmt: skip
_OTHER_KINDS: Final = ("half_send", "plain_send", "commit_after_check", "heartbeat_producer", "heartbeat_consumer")
KINDS: Final = frozenset({*_COMMANDS.values(), *_VERDICTS.values(), *_ANSWERS.values(), *_OTHER_KINDS})


def kind_of(read: Any, asked: int) -> str | None:
    """Of a frame; None: of no interest. ``asked``: the request that a response is for, -1 if there is none."""
    if read.is_response:
        return _ANSWERS.get((asked, read.code))
    match read.ext:
        case SendFields() as send if read.code == RequestCode.SEND_MESSAGE_V2:
            return "half_send" if send.sys_flag == 4 else "plain_send" if send.sys_flag == 0 else None
        case EndFields() as end if not end.from_transaction_check:
            return _VERDICTS[end.commit_or_rollback]
        case EndFields() as end:
            return "commit_after_check" if end.commit_or_rollback == 8 else None
    if read.code == RequestCode.HEART_BEAT:
        groups = decode_heartbeat(read.body)
        if groups.consumer_groups:
            return "heartbeat_consumer"
        return "heartbeat_producer" if "CLIENT_INNER_PRODUCER" in groups.producer_groups else None
    return _COMMANDS.get(read.code)


class Recorder:
    """The shortest frame of each kind, over all connections."""

    def __init__(self) -> None:
        self.frames: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def connection(self) -> "tuple[Callable[[bytes], None], Callable[[bytes], None]]":
        """What one connection sends to the server, and what comes back, in pieces."""
        asked: dict[int, int] = {}

        def to_server(frame: bytes, read: Any) -> None:
            if not read.is_response:
                asked[read.opaque] = read.code

        return self._tap(asked, to_server), self._tap(asked, lambda frame, read: None)

    def _tap(self, asked: dict[int, int], note: Callable[[bytes, Any], None]) -> Callable[[bytes], None]:
        splitter = FrameSplitter()

        def tapped(data: bytes) -> None:
            with self._lock:
                for frame in splitter.feed(data):
                    read = decode(frame)
                    note(frame, read)
                    kind = kind_of(read, asked.get(read.opaque, -1))
                    if kind is not None and len(frame) < len(self.frames.get(kind, frame + b"\0")):
                        self.frames[kind] = frame

        return tapped


def forward(listening: socket.socket, port: int, recorder: Recorder) -> None:
    """Connect whoever connects to ``port`` of ``HOST``, until ``listening`` is closed."""
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        server = socket.create_connection((HOST, port))
        to_server, to_client = recorder.connection()
        for source, target, tapped in ((client, server, to_server), (server, client, to_client)):
            threading.Thread(target=_pump, args=(source, target, tapped), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, tapped: Callable[[bytes], None]) -> None:
    try:
        while data := source.recv(1 << 16):
            tapped(data)  # first: an answer finds its request
            target.sendall(data)
    except OSError:
        pass  # one of the two is closed, so is the other
    for end in (source, target):
        end.close()


def recorded(version: str) -> Iterator[str]:
    """The lines of this version."""
    for header, letter in ((JSON, "J"), (BINARY, "R")):
        recorder = Recorder()
        with (
            tempfile.TemporaryDirectory() as directory,
            StockBroker(version, Path(directory, "stock"), **_SETTINGS) as stock,
        ):
            names_port = free_port()
            with (
                socket.create_server((HOST, names_port)) as names,
                socket.create_server((_TOLD, stock.broker_port)) as broker,
            ):
                for listening, port in ((names, stock.name_port), (broker, stock.broker_port)):
                    threading.Thread(target=forward, args=(listening, port, recorder), daemon=True).start()
                run(
                    version, f"{HOST}:{names_port}", Path(directory, "home"), *_PROGRAMS, prefix=f"t{version[0]}{letter}", header=header,
                    options=(*QUICK_REBALANCE, "-Dtransactions=100"),
                )  # fmt: skip
        missing = KINDS - recorder.frames.keys()
        assert not missing, f"{version} {header}: no frame of {sorted(missing)}"
        for kind, frame in recorder.frames.items():
            yield f"{kind}.{version}.{header.lower()} = {frame.hex()}"


if __name__ == "__main__":
    print("\n".join(sorted(recorded(sys.argv[1]))))
