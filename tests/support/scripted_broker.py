"""A name server and broker in memory for tests of the client. It behaves correctly unless the test says otherwise.

It stores messages and responds as RocketMQ would; ``on[code]`` replaces the behaviour for one request code. ``seen`` has the received
requests. There are no sockets: ``network.connect`` is the client's connector.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from halfmq import limits
from halfmq.client.async_client import AsyncClient
from halfmq.model import properties
from halfmq.model.address import Address
from halfmq.model.ids import offset_message_id
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.wire.remoting.codes import PullFlag, RequestCode
from halfmq.wire.remoting.frame import FrameSplitter
from halfmq.wire.remoting.group_bodies import encode_member_list
from halfmq.wire.remoting.header import Request, decode, encode_oneway_request, encode_response
from halfmq.wire.remoting.heartbeat import HeartbeatBody, decode_heartbeat
from halfmq.wire.remoting.message_codec import encode_check, split_batch
from halfmq.wire.remoting.route import BrokerData, QueueData, Route, encode_cluster_info, encode_route
from tests.support.virtual_time import LoopClock

NAMES = Address("names", 9876)
BROKER = Address("127.0.0.1", 10911)
URL = "rocketmq://names:9876"
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
Behaviour = Callable[["Peer", Request[Any]], bytes | None]


class Pipe(asyncio.Transport):
    """One end of a connection in memory, to which the client writes."""

    def __init__(self, peer: "Peer") -> None:
        super().__init__({"sockname": ("10.1.2.3", 40_000)})
        self._peer = peer
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing:
            asyncio.get_running_loop().call_soon(self._peer.feed, bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._peer.cut)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing


class Peer:
    """The server's end of one connection."""

    def __init__(self, server: "ScriptedBroker", protocol: asyncio.Protocol) -> None:
        self.server = server
        self.protocol = protocol
        self.open = True
        self._splitter = FrameSplitter()

    def feed(self, data: bytes) -> None:
        if not self.open:
            return
        for frame in self._splitter.feed(data):
            request = decode(frame)
            answer = self.server.handle(self, request)
            if answer is not None and self.open:
                self.send(answer)

    def send(self, data: bytes) -> None:
        if self.open:
            asyncio.get_running_loop().call_soon(self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self.open:
            self.protocol.data_received(data)

    def cut(self) -> None:
        """Both sides lose the connection."""
        if self.open:
            self.open = False
            self.server.peers.discard(self)
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Network:
    """The client's connector, and the servers by address. A server that is not ``up`` refuses connections."""

    def __init__(self) -> None:
        self.servers: dict[Address, ScriptedBroker] = {}
        self.connects: list[Address] = []

    async def connect(self, address: Address, protocol: Callable[[], asyncio.Protocol]) -> None:
        self.connects.append(address)
        server = self.servers.get(address)
        if server is not None and server.unreachable:
            await asyncio.sleep(3_600)
        if server is None or not server.up:
            raise ConnectionRefusedError(111, "Connection refused")
        made = protocol()
        peer = Peer(server, made)
        server.peers.add(peer)
        made.connection_made(Pipe(peer))


class ScriptedBroker:
    """Topics with ``queues`` queues each, created on first use."""

    def __init__(self, *, halfmq: bool = True, queues: int = 2, name: str = "broker-a", version: int = 409) -> None:
        self.halfmq = halfmq
        self.queues = queues
        self.name = name
        self.version = version
        self.up = True
        #: Connecting clients get no response at all, not even a refusal.
        self.unreachable = False
        self.peers: set[Peer] = set()
        self.seen: list[Request[Any]] = []
        #: Last heartbeat by connection.
        self.heartbeats: dict[Peer, HeartbeatBody] = {}
        self.on: dict[int, Behaviour] = {}
        self.topics: set[str] = {"TBW102"}
        #: Visible messages by (topic, queue).
        self.logs: dict[tuple[str, int], list[StoredMessage]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.halves: list[StoredMessage] = []
        #: Verdict by transaction id. Apache RocketMQ keeps none, and commits as often as requested.
        self.verdicts: dict[str, int] = {}
        self._parked: list[tuple[Peer, Request[Any]]] = []
        self._place = 0

    # --- for tests ------------------------------------------------------------------------------------------------

    def network(self) -> Network:
        network = Network()
        network.servers = {NAMES: self, BROKER: self}
        return network

    def requests(self, code: int) -> list[Request[Any]]:
        return [request for request in self.seen if request.code == code]

    def visible(self, topic: str) -> list[bytes]:
        return [m.body for (name, _), log in sorted(self.logs.items()) if name == topic for m in log]

    def stop(self) -> None:
        """As kill -9: connections end, and nobody listens."""
        self.up = False
        for peer in list(self.peers):
            peer.cut()
        self._parked.clear()

    def start(self) -> None:
        self.up = True

    def check(self, half_index: int, group: str, checks: int = 1) -> int:
        """Send a check (39) for a half to every connection that registered ``group``; returns their number."""
        half = self.halves[half_index]
        stored = b"".join(encode(half, half_index * 1000))
        asked = [peer for peer, body in self.heartbeats.items() if peer.open and group in body.producer_groups]
        for peer in asked:
            peer.send(
                encode_check(
                    7_000 + half_index,
                    stored,
                    half_index=half_index,
                    first_offset=half_index * 1000,
                    message_id=properties.to_dict(half.properties)["UNIQ_KEY"],
                    offset_id=offset_message_id(HOST, half_index * 1000),
                    checks=checks,
                    broker_name=self.name,
                )
            )
        return len(asked)

    def notify_members(self, group: str) -> None:
        for peer, body in self.heartbeats.items():
            if peer.open and any(consumer.group == group for consumer in body.consumer_groups):
                peer.send(encode_oneway_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1, {"consumerGroup": group}))

    def append(self, topic: str, queue: int, body: bytes, text: bytes = b"", reconsume_times: int = 0) -> None:
        log = self.logs.setdefault((topic, queue), [])
        log.append(_stored(topic, queue, len(log), body, text, reconsume_times))
        self._wake()

    # --- behaviour ------------------------------------------------------------------------------------------------

    def handle(self, peer: Peer, request: Request[Any]) -> bytes | None:
        self.seen.append(request)
        behaviour = self.on.get(request.code)
        if behaviour is not None:
            return behaviour(peer, request)
        return self.usual(peer, request)

    def usual(self, peer: Peer, request: Request[Any]) -> bytes | None:
        handler = _USUAL.get(request.code)
        if handler is None:
            return encode_response(request, 3, "not supported")
        return handler(self, peer, request)

    def _heartbeat(self, peer: Peer, request: Request[Any]) -> bytes:
        body = decode_heartbeat(request.body)
        self.heartbeats[peer] = body
        for group in body.consumer_groups:
            self.topics.add(f"%RETRY%{group.group}")
        return encode_response(request, 0, ext={"HMQ_VERSION": "1"} if self.halfmq else {})

    def _unregister(self, peer: Peer, request: Request[Any]) -> bytes:
        self.heartbeats.pop(peer, None)
        return encode_response(request, 0)

    def _cluster(self, _peer: Peer, request: Request[Any]) -> bytes:
        brokers = (BrokerData("C", self.name, {0: str(BROKER)}),)
        return encode_response(request, 0, body=encode_cluster_info(brokers, request.version))

    def _route(self, _: Peer, request: Request[Any]) -> bytes:
        topic = request.ext.topic
        if topic not in self.topics:
            return encode_response(request, 17, "no route")
        count = 1 if topic.startswith("%") else self.queues
        route = Route((BrokerData("C", self.name, {0: str(BROKER)}),), (QueueData(self.name, count, count, 6),))
        return encode_response(request, 0, body=encode_route(route, request.version))

    def _send(self, _: Peer, request: Request[Any]) -> bytes:
        fields = request.ext
        self.topics.add(fields.topic)
        text = fields.properties.encode()
        place = self._place = self._place + (1 << 20)
        if properties.find(text, "TRAN_MSG") == b"true":
            self.halves.append(_stored(fields.topic, fields.queue_id, 0, request.body, text))
            index = len(self.halves) - 1
            ext = _sent(index * 1000, fields.queue_id, index)
            return encode_response(request, 0, ext=ext)
        log = self.logs.setdefault((fields.topic, fields.queue_id), [])
        first = len(log)
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            entries = split_batch(request.body)
        else:
            entries = ((0, request.body, text),)  # type: ignore[assignment]
        for _flag, body, entry_text in entries:
            self.append(fields.topic, fields.queue_id, body, entry_text)
        ids = ",".join(offset_message_id(HOST, place + index) for index in range(len(entries)))
        return encode_response(request, 0, ext=_sent(place, fields.queue_id, first) | {"msgId": ids})

    def _end(self, _: Peer, request: Request[Any]) -> bytes | None:
        fields = request.ext
        wanted = fields.commit_or_rollback
        half = self.halves[fields.tran_state_table_offset]
        own_id = (properties.find(half.properties, "HMQ_TX_ID") or b"").decode()
        if not self.halfmq:
            if wanted == 8:
                self._show(own_id, fields.tran_state_table_offset)  # once more for each request: this is the danger
            return None if request.is_oneway or not wanted else encode_response(request, 0)
        standing = self.verdicts.get(own_id)
        if wanted and standing is None:
            self.verdicts[own_id] = wanted
            if wanted == 8:
                self._show(own_id, fields.tran_state_table_offset)
        if request.is_oneway:
            return None
        names = {8: "COMMITTED", 12: "ROLLED_BACK"}
        if standing is not None and standing != wanted:
            return encode_response(request, 604, "the opposite verdict stands", {"HMQ_VERDICT": names[standing]})
        ext = {
            "HMQ_TX_ID": own_id,
            "HMQ_VERDICT": names[wanted],
            "HMQ_POSITION": 4096,
            "HMQ_DURABILITY": "fsync",
            "HMQ_REPEATED": standing is not None,
        }
        return encode_response(request, 0, ext=ext)

    def _show(self, tx_id: str, index: int) -> None:
        for number, half in enumerate(self.halves):
            mine = (properties.find(half.properties, "HMQ_TX_ID") or b"").decode() == tx_id
            if (mine and self.halfmq) or number == index:
                self.append(half.topic, half.queue_id, half.body, half.properties)

    def _members(self, _: Peer, request: Request[Any]) -> bytes:
        group = request.ext.consumer_group
        ids = [
            body.client_id
            for peer, body in self.heartbeats.items()
            if peer.open and any(consumer.group == group for consumer in body.consumer_groups)
        ]
        if not ids:
            return encode_response(request, 1, "no consumer for this group")
        return encode_response(request, 0, body=encode_member_list(ids))

    def _offset(self, _: Peer, request: Request[Any]) -> bytes:
        fields = request.ext
        offset = self.offsets.get((fields.consumer_group, fields.topic, fields.queue_id))
        if offset is None:
            return encode_response(request, 22, "not found")
        return encode_response(request, 0, ext={"offset": offset})

    def _commit(self, _: Peer, request: Request[Any]) -> bytes | None:
        fields = request.ext
        self.offsets[(fields.consumer_group, fields.topic, fields.queue_id)] = fields.commit_offset
        return None if request.is_oneway else encode_response(request, 0)

    def _min(self, _: Peer, request: Request[Any]) -> bytes:
        return encode_response(request, 0, ext={"offset": 0})

    def _max(self, _: Peer, request: Request[Any]) -> bytes:
        log = self.logs.get((request.ext.topic, request.ext.queue_id), [])
        return encode_response(request, 0, ext={"offset": len(log)})

    def _search(self, _: Peer, request: Request[Any]) -> bytes:
        return encode_response(request, 0, ext={"offset": 1})

    def _pull(self, peer: Peer, request: Request[Any]) -> bytes | None:
        fields = request.ext
        if fields.sys_flag & PullFlag.COMMIT_OFFSET:
            self.offsets[(fields.group, fields.topic, fields.queue_id)] = fields.commit_offset
        return self._answer_pull(peer, request, park=True)

    def _answer_pull(self, peer: Peer, request: Request[Any], *, park: bool) -> bytes | None:
        fields = request.ext
        log = self.logs.get((fields.topic, fields.queue_id), [])
        found = log[fields.queue_offset : fields.queue_offset + fields.messages_max]
        if not found and park:
            self._parked.append((peer, request))
            loop = asyncio.get_running_loop()
            loop.call_later(fields.wait_ms / 1000, self._unpark, peer, request)
            return None
        following = fields.queue_offset + len(found)
        ext = {"suggestWhichBrokerId": 0, "nextBeginOffset": following, "minOffset": 0, "maxOffset": len(log)}
        body = b"".join(part for number, m in enumerate(found) for part in encode(m, 5000 + number))
        return encode_response(request, 0 if found else 19, "FOUND" if found else "PULL_NOT_FOUND", ext, body)

    def _unpark(self, peer: Peer, request: Request[Any]) -> None:
        if (peer, request) in self._parked:
            self._parked.remove((peer, request))
            answer = self._answer_pull(peer, request, park=False)
            assert answer is not None
            peer.send(answer)

    def _wake(self) -> None:
        for peer, request in list(self._parked):
            fields = request.ext
            if len(self.logs.get((fields.topic, fields.queue_id), [])) > fields.queue_offset:
                self._unpark(peer, request)

    def _send_back(self, _: Peer, request: Request[Any]) -> bytes:
        fields = request.ext
        if fields.delay_level < 0:
            self.append(f"%DLQ%{fields.group}", 0, b"dead")
        else:
            text = properties.encode({"RETRY_TOPIC": fields.origin_topic, "UNIQ_KEY": fields.origin_msg_id})
            delay_s = limits.DELAY_LEVELS_MS[(fields.delay_level or 3) - 1] / 1000
            again = (f"%RETRY%{fields.group}", 0, b"again", text, 1)
            asyncio.get_running_loop().call_later(delay_s, self.append, *again)
        return encode_response(request, 0)


def _sent(log_offset: int, queue: int, queue_offset: int) -> dict[str, object]:
    return {"msgId": offset_message_id(HOST, log_offset), "queueId": queue, "queueOffset": queue_offset}


def _stored(
    topic: str, queue: int, offset: int, body: bytes, text: bytes = b"", reconsume_times: int = 0
) -> StoredMessage:
    return StoredMessage(
        topic, queue, offset, 0, 0, 1_795_000_000_000, HOST, 1_795_000_000_500, HOST, reconsume_times, 0, body,
        body_crc_of(body), text,
    )  # fmt: skip


_USUAL: dict[int, Any] = {
    RequestCode.HEART_BEAT: ScriptedBroker._heartbeat,
    RequestCode.UNREGISTER_CLIENT: ScriptedBroker._unregister,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ScriptedBroker._route,
    RequestCode.GET_BROKER_CLUSTER_INFO: ScriptedBroker._cluster,
    RequestCode.SEND_MESSAGE_V2: ScriptedBroker._send,
    RequestCode.SEND_BATCH_MESSAGE: ScriptedBroker._send,
    RequestCode.END_TRANSACTION: ScriptedBroker._end,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ScriptedBroker._members,
    RequestCode.QUERY_CONSUMER_OFFSET: ScriptedBroker._offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: ScriptedBroker._commit,
    RequestCode.GET_MIN_OFFSET: ScriptedBroker._min,
    RequestCode.GET_MAX_OFFSET: ScriptedBroker._max,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ScriptedBroker._search,
    RequestCode.PULL_MESSAGE: ScriptedBroker._pull,
    RequestCode.CONSUMER_SEND_MSG_BACK: ScriptedBroker._send_back,
}


class Dice:
    """Reproducible entropy."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def stream(self, purpose: str) -> random.Random:
        return random.Random(f"{purpose}")


async def in_place(function: Callable[..., Any], *args: Any) -> Any:
    """Runs plain functions of the application on the loop: there are no threads in virtual time."""
    return function(*args)


def client_of(network: Network, *, group: str = "orders", seed: int = 7, **options: Any) -> AsyncClient:
    return AsyncClient(
        URL, group=group, connector=network, clock=LoopClock(), entropy=Dice(seed), run_blocking=in_place, **options
    )
