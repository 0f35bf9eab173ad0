"""A stranger on one connection of the real broker, in the simulated world: nobody else notices, and nothing of it stays."""

import logging
import random
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, get_args
from zlib import crc32

from msgspec.structs import replace

from halfmq.broker.config import BrokerConfig, packed_host
from halfmq.broker.remoting.commands import COMMANDS
from halfmq.core.decide import DECIDE
from halfmq.errors import ProtocolError
from halfmq.model.half_batch import HalfMessage, build_payload
from halfmq.model.query_batch import QueryBatch
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting import (
    check_polls,
    group_bodies,
    half_batches,
    heartbeat,
    message_codec,
    operators,
    position,
    producer_groups,
    raw_read,
    table_read,
)
from halfmq.wire.remoting.codes import (
    HMQ_ASK,
    HMQ_CLIENTS,
    HMQ_COORDINATORS,
    HMQ_DECIDE,
    HMQ_DECISION,
    HMQ_FENCE,
    HMQ_FITTING,
    HMQ_FORGET_COORDINATOR,
    HMQ_FORGET_QUERY,
    HMQ_KICK_CLIENT,
    HMQ_POLL_CHECKS,
    HMQ_POSITION,
    HMQ_PREPARE_BATCH,
    HMQ_PRODUCER,
    HMQ_QUERIES,
    HMQ_RAW_READ,
    HMQ_RESOLVE,
    HMQ_SET_SETTING,
    HMQ_SETTINGS,
    HMQ_STATS,
    HMQ_STORY,
    HMQ_TABLE_READ,
    HMQ_TAKE_EPOCH,
    HMQ_TRANSACTIONS,
    HMQ_UNDECIDED,
)
from halfmq.wire.remoting.frame import BrokenFrame, FrameSplitter
from halfmq.wire.remoting.header import decode
from tests.fuzz.target import Target, hold, outcome, same
from tests.fuzz.wire_targets import java_frames, pieces
from tests.simulation.world import DATA, HandClock, Life
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw_client import command, property_string
from tests.support.worst_requests import REQUESTS

#: As the broker of this world says, in every message.
STORE_HOST: Final = packed_host("127.0.0.1", 10_911)
_CONFIG: Final = BrokerConfig(
    data=DATA, port=0, name_port=0, segment_bytes=1 << 16, checkpoint_interval_ms=10**9, retention_check_ms=10**9,
    disk_reserve_bytes=0,
)  # fmt: skip


class Stranger:
    """The broker's end of a connection whose bytes are given, and what it wrote back."""

    def __init__(self, life: Life, number: int) -> None:
        self.number = number
        self.written = bytearray()
        self.closed = False
        self.protocol: Any = life.loop.admit("10.0.0.9")
        self.protocol.connection_made(self)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("10.0.0.9", 40_000 + self.number) if name == "peername" else default

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        return

    resume_reading = pause_reading

    def close(self) -> None:
        self.closed = True

    abort = close

    def frames(self) -> list[bytes]:
        """Sorted: answers that wait for nothing overtake others, earlier ones at the end of each read."""
        return sorted(FrameSplitter(1 << 30).feed(bytes(self.written)))


class Errors(logging.Handler):
    """What the broker calls an error is a bug of ours, or of its disk; here the disk is well."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self.seen.append(f"{record.getMessage()} ({cause!r})")


class World:
    def __init__(self) -> None:
        self.disk = FaultyDisk(1)
        self.clock = HandClock()
        self.start()
        peer = self.life.connect()
        peer.send(17, {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"})
        self.life.settle()

    def start(self) -> None:
        self.life = Life(self.disk, self.clock, 1, _CONFIG)
        self.life.start()
        # The commands of a read are handled in several turns, and written in several batches, if they take long or may do so. Here no
        # time passes within a turn, so the log does not depend on the machine, nor on how often an unknown command is expected.
        broker, time = self.life.broker, self.life.loop.time
        broker._sequencer.pace.clock = broker._peers.intake.clock = time
        broker._sequencer.pace.took_s = dict.fromkeys(DECIDE, 0.0)
        self.life.settle()

    def log(self) -> dict[str, bytes]:
        folder = DATA / "shard-0" / "log"
        return {name: self.disk.content(folder / name) for name in self.disk.list(folder)}

    def talk(self, stream: bytes, sizes: Sequence[int], *, turns: bool) -> Stranger:
        """The stream in pieces of these sizes; with ``turns`` the broker works between two of them."""
        stranger = Stranger(self.life, 7)
        at = 0
        for size in sizes:
            if stranger.closed:
                break
            stranger.protocol.data_received(stream[at : at + size])
            at += size
            if turns:
                self.life.settle()
        self.life.settle()
        self.clock.now_ms += 31_000  # held pulls and checks come due
        self.life.settle()
        stranger.protocol.connection_lost(None)
        self.life.settle()
        return stranger

    def serves(self) -> None:
        """Somebody else sends a message and gets it back, also after a restart."""
        peer = self.life.connect()
        opaque = peer.send(310, _send_ext("Good", "GOOD"), b"well")
        self.life.settle()
        hold(peer.answers[opaque].code == 0, f"a good send is answered {peer.answers[opaque]}")
        self._pulls(peer)
        self.disk.kill()
        self.start()
        self._pulls(self.life.connect())

    def _pulls(self, peer: Any) -> None:
        opaque = peer.send(11, _pull_ext("Good"))
        self.life.settle()
        hold(opaque in peer.answers and b"well" in peer.answers[opaque].body, "a good message cannot be pulled")


def _send_ext(topic: str, unique_id: str, **properties: str) -> dict[str, str]:
    return {
        "a": "P", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "4" if "TRAN_MSG" in properties else "0", "g": "1",
        "h": "0", "i": property_string(UNIQ_KEY=unique_id, PGROUP="P", **properties), "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def _pull_ext(topic: str) -> dict[str, str]:
    return {
        "consumerGroup": "C", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip


def run_broker(data: bytes) -> None:
    """``data``: how it is cut, then what the stranger sends."""
    if not data:
        return
    seed, stream = data[0], data[1:]
    errors = Errors()
    logger = logging.getLogger("halfmq")
    quiet = logger.level
    logger.addHandler(errors)
    logger.propagate = False
    try:
        one, two, three = World(), World(), World()
        before = one.log()
        at_once = one.talk(stream, [len(stream)], turns=False)
        in_pieces = two.talk(stream, pieces(len(stream), seed), turns=False)
        same("answers, in pieces", _without_waiting(in_pieces.frames()), _without_waiting(at_once.frames()))
        same("closed, in pieces", in_pieces.closed, at_once.closed)
        hold(one.log() == two.log(), "the log depends on how the stream was cut")
        if _refused(stream, at_once):
            hold(one.log() == before, "every request was refused, and the log changed")
        slowly = three.talk(stream, pieces(len(stream), seed), turns=True)
        same("closed, slowly", slowly.closed, at_once.closed)
        for world in (one, three):
            world.serves()
    finally:
        logger.removeHandler(errors)
        logger.propagate = True
        logger.setLevel(quiet)
    hold(not errors.seen, f"the broker logs an error: {errors.seen[:1]}")


def _frames(stream: bytes) -> list[bytes]:
    try:
        return FrameSplitter().feed(stream)
    except BrokenFrame as error:
        return error.frames


def _without_waiting(frames: Sequence[bytes]) -> list[bytes]:
    """Without how much of its requests waits, which the list of connections says."""
    return [re.sub(rb'"pending":\d+', b'"pending":0', frame) for frame in frames]


def _refused(stream: bytes, stranger: Stranger) -> bool:
    """Whether each request was answered, and with no. A pull that finds nothing makes its group all the same."""
    asked = [outcome(ProtocolError, decode, frame) for frame in _frames(stream)]
    answers = [decode(frame) for frame in stranger.frames()]
    return len(asked) == len(answers) and all(answer.code not in _DONE for answer in answers)


_DONE: Final = frozenset((0, 19, 20, 21))


# --- seeds -------------------------------------------------------------------------------------------------------


def split_stream(data: bytes) -> list[bytes]:
    """The byte for the cut, then header and body of each frame; what is no frame in one piece."""
    try:
        splitter = FrameSplitter()
        frames = splitter.feed(data[1:])
    except BrokenFrame:
        return [data]
    if not frames or splitter.pending_bytes:
        return [data]
    parts = [data[:1]]
    for frame in frames:
        end = 4 + int.from_bytes(frame[1:4], "big")
        parts += [frame[4:end] if frame[0] == 0 else frame[:end], frame[end:]]
    return parts


def join_stream(parts: Sequence[bytes]) -> bytes:
    if len(parts) < 3:
        return b"".join(parts)
    stream = [parts[0][:1] or b"\0"]
    for at in range(1, len(parts) - 1, 2):
        header, body = parts[at], parts[at + 1]
        word = (len(header) & 0xFFFFFF).to_bytes(4, "big") if header[:1] != b"\1" else b""
        stream.append((len(word) + len(header) + len(body)).to_bytes(4, "big") + word + header + body)
    return b"".join(stream)


@cache
def _conversations() -> tuple[bytes, ...]:
    """What stock clients and ours say, as streams; offsets are those that this world gives."""
    world = World()
    peer = world.life.connect()
    half = peer.send(310, _send_ext("T", "H" * 32, TRAN_MSG="true"), b"half")
    world.life.settle()
    sent = peer.answers[half]
    ends = {
        "producerGroup": "P", "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(int(sent.ext["msgId"][-16:], 16)), "commitOrRollback": "8", "msgId": "H" * 32,
        "fromTransactionCheck": "false", "transactionId": "H" * 32,
    }  # fmt: skip
    subscription = heartbeat.Subscription("T", "A || B", ("A", "B"), 1)
    group = heartbeat.ConsumerGroup("C", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", (subscription,))
    hello = heartbeat.encode_heartbeat(heartbeat.HeartbeatBody("me", ("P",), (group,)))
    lock = group_bodies.encode_lock_request(
        group_bodies.LockBody("C", "me", (group_bodies.MessageQueue("T", "halfmq", 0),))
    )
    check = group_bodies.encode_config_check(group_bodies.ConfigCheck("me", "C", subscription))
    assigned = b'{"clientId":"me","consumerGroup":"C","messageModel":"CLUSTERING","mode":"POP","strategyName":"AVG","topic":"T"}'
    batch = message_codec.join_batch(
        message_codec.BatchEntry(0, b"b", property_string(UNIQ_KEY=f"B{number}").encode()) for number in range(3)
    )
    limits = producer_groups.encode_change(producer_groups.ProducerChange(2, "rollback", 0, 5, 1 << 20))
    half_send = (310, _send_ext("T", "H" * 32, TRAN_MSG="true"), b"half")
    several = [
        (
            310,
            _send_ext("T", f"S{number}", TRAN_MSG="true", HMQ_TX_ID="S", HMQ_TX_INDEX=str(number), HMQ_TX_COUNT="2"),
            b"s",
        )
        for number in range(2)
    ]
    said: tuple[list[tuple[int, dict[str, str], bytes]], ...] = (
        [(34, {}, hello), half_send, (37, ends, b""), (11, _pull_ext("T"), b"")],
        [half_send, (37, ends | {"commitOrRollback": "12"}, b""), (37, ends, b""), (310, _send_ext("T", "D", DELAY="1"), b"d")],
        [(34, {}, hello), *several, (HMQ_TRANSACTIONS, {"group": "", "max": "9"}, b"")],
        [(310, _send_ext("T", "A", TAGS="A", KEYS="k"), b"a"), (320, _send_ext("T", "-"), batch), (11, _pull_ext("T"), b"")],
        [(105, {"topic": "T"}, b""), (106, {}, b""), (21, {}, b""), (28, {}, b""), (206, {}, b""), (202, {"topic": "T"}, b"")],
        [(34, {}, hello), (38, {"consumerGroup": "C"}, b""), (41, {}, lock), (42, {}, lock), (46, {}, check)],
        [(34, {}, hello), (14, {"consumerGroup": "C", "topic": "T", "queueId": "0"}, b""),
         (15, {"consumerGroup": "C", "topic": "T", "queueId": "0", "commitOffset": "1"}, b""),
         (30, {"topic": "T", "queueId": "0"}, b""), (31, {"topic": "T", "queueId": "0"}, b""),
         (29, {"topic": "T", "queueId": "0", "timestamp": "1", "boundaryType": "LOWER"}, b""),
         (32, {"topic": "T", "queueId": "0"}, b"")],
        [(310, _send_ext("T", "A"), b"a"), (33, {"offset": ends["commitLogOffset"]}, b""),
         (36, {"offset": ends["commitLogOffset"], "group": "C", "delayLevel": "0", "maxReconsumeTimes": "2"}, b""),
         (12, {"topic": "T", "key": "A", "maxNum": "9", "_UNIQUE_KEY_QUERY": "true"}, b"")],
        [half_send, (HMQ_STORY, {"group": "P", "txId": "H" * 32}, b""),
         (HMQ_RESOLVE, {"group": "P", "txId": "H" * 32, "verdict": "COMMIT", "operator": "me", "reason": "r"}, b""),
         (HMQ_UNDECIDED, {}, operators.encode_ids(["H" * 32])),
         (HMQ_POSITION, position.request_ext(["T", "Nowhere"]), b""),
         (HMQ_FITTING, write_fields(position.FittingFields("T", 0, 0, 9, 1_000)), b""),
         (HMQ_RAW_READ, write_fields(raw_read.RawReadFields("C", "0" * 32, "T", 1, 0, 0, 9, 999, 1, 1)), b"")],
        [(17, {"topic": "New", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}, b""), (351, {"topic": "New"}, b""),
         (215, {"topic": "New"}, b""), (200, {}, b'{"groupName":"C2"}'), (207, {"groupName": "C2"}, b""),
         (203, {"consumerGroup": "C"}, b""), (204, {"producerGroup": "P"}, b""), (208, {"consumerGroup": "C"}, b"")],
        [half_send, (HMQ_ASK, {"group": "P", "txId": "H" * 32}, b""),
         (HMQ_PRODUCER, {"group": "P", "operator": "me"}, limits),
         (HMQ_PRODUCER, {"group": "P"}, b""), (HMQ_STATS, {"group": ""}, b""), (HMQ_QUERIES, {"max": "3"}, b""),
         (HMQ_FENCE, {}, b""), (HMQ_FENCE, {"group": "P", "txId": "f", "since": "0"}, b""),
         (HMQ_CLIENTS, {"max": "3"}, b""), (HMQ_KICK_CLIENT, {"clientId": "me", "operator": "me", "reason": "r"}, b""),
         (HMQ_SET_SETTING, {"setting": "queries_max", "value": "5", "operator": "me"}, b""), (HMQ_SETTINGS, {}, b""),
         (HMQ_SET_SETTING, {"setting": "queries_max", "unset": "true", "operator": "me"}, b""),
         (HMQ_FORGET_QUERY, {"query": "q", "operator": "me", "reason": "r"}, b""),
         (HMQ_TAKE_EPOCH, {"group": "P", "coordinator": "c", "takenBy": "me"}, b""), (HMQ_COORDINATORS, {"max": "3"}, b""),
         (HMQ_FORGET_COORDINATOR, {"group": "P", "coordinator": "c", "operator": "me", "reason": "r"}, b""),
         (HMQ_POLL_CHECKS, write_fields(check_polls.PollFields("P", "me", 1_000, 5)), b"")],
        [*_half_batch_requests()],
        [half_send, *[(HMQ_TABLE_READ, write_fields(table_read.TableReadFields("0" * 32, wanted, 0, 9, 0, 999)), b"")
                      for wanted in get_args(table_read.Wanted)]],
        [(35, {"clientID": "me", "producerGroup": "P", "consumerGroup": "C"}, b""), (9_999, {}, b"")],
        [(34, {}, hello), (310, _send_ext("T", "A"), b"a"), (400, {}, assigned), (401, {}, assigned), (41, {}, lock),
         (325, _send_ext("DefaultCluster_REPLY_TOPIC", "R", REPLY_TO_CLIENT="me"), b"reply"),
         (200_050, {"consumerGroup": "C"}, b"")],
    )  # fmt: skip
    listed = {code for requests in said for code, _, _ in requests}
    said += ([half_send, *[(code, *REQUESTS[code]) for code in COMMANDS if code not in listed]],)
    streams = [
        bytes((number,))
        + b"".join(command(code, opaque, ext, body) for opaque, (code, ext, body) in enumerate(turn, 1))
        for number, turn in enumerate(said)
    ]
    java = [frame for frame in java_frames() if not decode(frame).is_response]
    for start in range(0, len(java), 8):
        framed = b"".join(len(frame).to_bytes(4, "big") + frame for frame in java[start : start + 8])
        streams.append(bytes((start,)) + framed)
    return tuple(streams)


def _half_batch_requests() -> list[tuple[int, dict[str, str], bytes]]:
    """A batch of a query is prepared, decided, and decided again; one is prepared for a transaction."""
    payload, count = build_payload(
        [HalfMessage(0, 0, b"body", property_string(UNIQ_KEY=f"Q{number}").encode()) for number in range(3)],
        topic="T", queue_id=0, born_time_ms=1, born_host=STORE_HOST, store_host=STORE_HOST,
    )  # fmt: skip
    checksum = crc32(payload)
    prepare = half_batches.PrepareFields("W", "T", 0, count, checksum, 0, 0, "", "q", 0, "r", "0.1", -1, 2)
    alone = half_batches.PrepareFields("W", "T", 0, count, checksum, 0, 1, "tx", default_queues=2)
    batch, decide = QueryBatch("q", 0, "r"), half_batches.decide_ext("W", QueryBatch("q", 0, "r"), bytes(16))
    winners = half_batches.encode_winners([half_batches.WinnerRow("0.1", 1, count, checksum)])
    found = half_batches.decision_ext(batch)
    said = [
        (HMQ_PREPARE_BATCH, write_fields(prepare), payload), (HMQ_DECISION, found, b""),
        (HMQ_PREPARE_BATCH, write_fields(replace(prepare, run="s")), payload),
        (HMQ_DECIDE, decide, winners),
        (HMQ_DECIDE, half_batches.decide_ext("W", QueryBatch("q", 0, "s"), bytes(16)), winners),
        (HMQ_DECIDE, decide, b"[]"), (HMQ_DECISION, {}, b""),
        (HMQ_PREPARE_BATCH, write_fields(alone), payload), (11, _pull_ext("T"), b""),
    ]  # fmt: skip
    return [(code, {name: str(value) for name, value in ext.items()}, body) for code, ext, body in said]


def mixed(seed: int) -> bytes:
    """Several conversations on one connection."""
    rng = random.Random(seed)
    return bytes((seed & 255,)) + b"".join(rng.choice(_conversations())[1:] for _ in range(rng.randrange(2, 5)))


TARGETS: Final = (
    Target(
        "broker",
        "answers, log and the connection's end do not depend on how a stream is cut; what is refused changes no byte of "
        "the log; no handler fails; others are served, also after a restart",
        run_broker, lambda: [*_conversations(), *(mixed(seed) for seed in range(8))],
        ("halfmq.broker",), fresh=25, split=split_stream, join=join_stream,
    ),
)  # fmt: skip
