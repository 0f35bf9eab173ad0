"""A stage for stories about one broker: real in everything but loop, clock and disk, which the story moves by hand.

Verbs are those of the field: ``half``, ``commit``, ``roll_back``, ``visible``, ``checks``, ``power_fails``. Each waits until
the broker has nothing more to do at that moment, so what a verb returns is what a client would have been told.
"""

import json
from typing import Any, NamedTuple

from halfmq.broker.config import BrokerConfig
from halfmq.core.commands import SetProducer
from halfmq.core.decision import ProducerSettingsStored
from halfmq.model import properties as props
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings
from halfmq.model.stored_message import decode
from tests.simulation.world import DATA, HandClock, Life, Peer
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw_client import Answer, end_ext, pull_ext, send_ext

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
LOG = DATA / "shard-0" / "log"
SEGMENT_BYTES = 1 << 16
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
#: Live clients say that they live this often, ms. The broker closes who is silent for 120 s.
HEARTBEAT_MS = 30_000


class Half(NamedTuple):
    """A half message as it was acknowledged: what END must name."""

    tx_id: str
    unique: str
    answer: Answer
    group: str

    @property
    def offset(self) -> int:
        """Where it was first stored: ``commitLogOffset``."""
        return int(self.answer.ext["msgId"][-16:], 16)


class Check(NamedTuple):
    """A check (39) as a producer gets it."""

    tx_id: str
    #: The broker's count, from 1: TRANSACTION_CHECK_TIMES.
    number: int
    #: The body of the half message that comes with it.
    body: bytes
    push: Answer


class Stage:
    def __init__(self, *, seed: int = 1, settings: BrokerSettings | None = None, **config: Any) -> None:
        self.disk = FaultyDisk(seed)
        self.clock = HandClock()
        self._seed = seed
        values: dict[str, Any] = {
            "port": 0, "name_port": 0, "segment_bytes": SEGMENT_BYTES, "checkpoint_interval_ms": HOUR, "retention_ms": 0,
            "disk_reserve_bytes": 0, **config,
        }  # fmt: skip
        self.config = BrokerConfig(data=DATA, settings=settings or BrokerSettings(dedup_window_ms=1_000), **values)
        self._serial = 0
        self.starts()

    # --- the broker's lives

    def starts(self) -> None:
        self.life = Life(self.disk, self.clock, self._seed + self.disk.crashes, self.config)
        self._alive: dict[Peer, tuple[str, tuple[str, ...]]] = {}
        self._beat_ms = self.clock.now_ms
        self.life.start()
        self.life.settle()
        self.client = self.life.connect()

    def power_fails(self) -> None:
        """What was not synced may be gone, whole or in part; then the broker starts again."""
        self.disk.crash()
        self.starts()

    @property
    def is_serving(self) -> bool:
        return not self.life.broker.failed.done()

    def pass_time(self, span_ms: int, step_ms: int = SECOND) -> None:
        """Time passes in steps; clients that are alive send their heartbeats."""
        end_ms = self.clock.now_ms + span_ms
        while self.clock.now_ms < end_ms:
            self.clock.now_ms = min(end_ms, self.clock.now_ms + step_ms)
            if self.clock.now_ms - self._beat_ms >= HEARTBEAT_MS:
                self._beat_ms = self.clock.now_ms
                for peer, (client_id, groups) in self._alive.items():
                    self._heartbeat(peer, client_id, groups)
            self.life.settle()

    # --- clients

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"", *, peer: Peer | None = None) -> Answer:
        peer = peer or self.client
        opaque = peer.send(code, ext, body)
        self.life.settle()
        assert opaque in peer.answers, f"command {code} was never answered"
        return peer.answers.pop(opaque)

    def connect(self) -> Peer:
        return self.life.connect()

    def producer(self, client_id: str, *groups: str) -> Peer:
        """A live process of these producer groups."""
        peer = self.life.connect()
        self._alive[peer] = client_id, groups or ("P",)
        self._heartbeat(peer, *self._alive[peer])
        self.life.settle()
        return peer

    def members(self, group: str = "P") -> list[str]:
        """Client ids of those who are asked."""
        return list(self.life.state.producer_groups[group].session.members.values())

    @staticmethod
    def stops_reading(peer: Peer) -> None:
        """What is sent to the process stays in its socket, and then in the broker: its connection is full."""
        peer.protocol.pause_writing()

    def reads_again(self, peer: Peer) -> None:
        peer.protocol.resume_writing()
        self.life.settle()

    def leaves(self, peer: Peer) -> None:
        """The process is gone, and so is its connection."""
        self._alive.pop(peer, None)
        peer.protocol.connection_lost(None)
        self.life.settle()

    def _heartbeat(self, peer: Peer, client_id: str, groups: tuple[str, ...]) -> None:
        body = {"clientID": client_id, "producerDataSet": [{"groupName": name} for name in groups]}
        peer.send(34, {}, json.dumps(body).encode(), oneway=True)

    def send(self, topic: str = "Other", body: bytes = bytes(4_000)) -> Answer:
        """A plain message, to move the log on."""
        self._serial += 1
        return self.ask(310, send_ext(topic, "G", 0, {"UNIQ_KEY": f"PLAIN{self._serial:027d}"}), body)

    def opts_in(self, group: str, *, check_limit: int, past_limit: PastLimit) -> None:
        """The owner of the group says what shall become of transactions that asking does not settle."""
        told: list[object] = []
        settings = ProducerSettings(group, check_limit, past_limit, set_by="kim")
        self.life.broker._sequencer.submit(SetProducer(settings), lambda _, reply: told.append(reply))
        self.life.settle()
        assert told == [ProducerSettingsStored(settings)], f"the policy was refused: {told}"

    # --- transactions

    def half(
        self, tx_id: str, body: bytes = b"one", *, topic: str = "T", group: str = "P", queue: int = 0, queues: int = 1,
        peer: Peer | None = None, born_ms: int | None = None, **properties: str,
    ) -> Half:  # fmt: skip
        unique = properties.pop("UNIQ_KEY", tx_id)
        pairs = {"TRAN_MSG": "true", "UNIQ_KEY": unique, "PGROUP": group, **properties}
        ext = send_ext(topic, group, queue, pairs, queues=queues, sys_flag=4)
        ext["g"] = str(self.clock.now_ms if born_ms is None else born_ms)
        answer = self.ask(310, ext, body, peer=peer)
        assert answer.code == 0, f"a half message was refused: {answer}"
        return Half(tx_id, unique, answer, group)

    def end(self, half: Half, wanted: int, *, peer: Peer | None = None, **more: str) -> Answer:
        return self.ask(37, self.end_ext(half, wanted, **more), peer=peer)

    @staticmethod
    def end_ext(half: Half, wanted: int, **more: str) -> dict[str, str]:
        if half.tx_id != half.unique:
            more = {"HMQ_TX_ID": half.tx_id, **more}
        return end_ext(half.answer, half.unique, wanted, group=half.group, **more)

    def answers(self, peer: Peer, check: Check, wanted: int) -> None:
        """The one-way 37 with which a stock client answers a check."""
        ext = check.push.ext
        peer.send(
            37,
            {
                "producerGroup": props.to_dict(decode(check.push.body)[0].properties)["PGROUP"],
                "tranStateTableOffset": ext["tranStateTableOffset"], "commitLogOffset": ext["commitLogOffset"],
                "commitOrRollback": str(wanted), "fromTransactionCheck": "true", "msgId": ext["msgId"],
            },
            oneway=True,
        )  # fmt: skip
        self.life.settle()

    @staticmethod
    def checks(peer: Peer) -> list[Check]:
        """What this producer was asked since the last look."""
        found = []
        for push in peer.pushes:
            if push.code == 39:
                message = decode(push.body)[0]
                pairs = props.to_dict(message.properties)
                tx_id = pairs.get("HMQ_TX_ID") or pairs.get("UNIQ_KEY", "?")
                found.append(Check(tx_id, int(pairs["TRANSACTION_CHECK_TIMES"]), message.body, push))
        peer.pushes.clear()
        return found

    def undecided(self, group: str = "P") -> set[str]:
        known = self.life.state.producer_groups.get(group)
        return set() if known is None else set(known.undecided)

    # --- what consumers see

    def visible(self, topic: str = "T", queue: int = 0) -> list[bytes]:
        bodies: list[bytes] = []
        offset, peer = 0, self.life.connect()
        while True:
            answer = self.ask(11, pull_ext(topic, "C", queue, offset), peer=peer)
            if answer.code == 21 and int(answer.ext["nextBeginOffset"]) > offset:
                offset = int(answer.ext["nextBeginOffset"])  # what lies before is trimmed
                continue
            if answer.code != 0:
                return bodies
            at = 0
            while at < len(answer.body):
                message, _, size = decode(answer.body, at)
                bodies.append(message.body)
                at += size
            offset = int(answer.ext["nextBeginOffset"])
