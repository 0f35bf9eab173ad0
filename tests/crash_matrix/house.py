"""The real broker on a faulty disk, and its clients, with their requests and the responses before the crash.

Only the broker's dependencies are replaced (``tests.simulation.world``). The book of responses can be copied at any moment:
a restart after a crash at that moment must agree with it.
"""

import json
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from halfmq import limits
from halfmq.broker.config import BrokerConfig, packed_host
from halfmq.model import properties
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import body_crc_of
from halfmq.model.stored_message import decode as decode_message
from halfmq.store.watermark_page import Watermark, read_watermark_page
from tests.crash_matrix import batches
from tests.crash_matrix.batches import Batch
from tests.simulation.world import DATA, HandClock, Life, Peer
from tests.support.faulty_disk import FaultyDisk
from tests.support.raw_client import Answer, property_string

GROUP = "pgroup"
READERS = "readers"
SEGMENT_BYTES = 1 << 16
COMMIT, ROLLBACK = "8", "12"
VERDICTS = {COMMIT: "COMMITTED", ROLLBACK: "ROLLED_BACK"}
#: SERVICE_NOT_AVAILABLE: a full disk refuses new messages. The client retries later.
NO_ROOM = 14
#: Never, within a script.
NEVER_MS = 1_000_000_000


class Violation(AssertionError):
    """A promise does not hold."""


@dataclass
class Said:
    """A message that a client sent, in a transaction or alone."""

    unique: str
    topic: str
    queue: int
    body: bytes
    #: Standard delay level, from 1; 0: none.
    delay_level: int = 0
    sent_at_ms: int = 0
    #: For a half: (half index, offset message id); for a plain message: (queue, queue offset, offset message id).
    acked: tuple[str, ...] | None = None
    #: Acknowledged long ago, and perhaps lost in a power loss since: the client does not retry it.
    is_over: bool = False


@dataclass
class Tx:
    tx_id: str
    messages: list[Said]
    #: The decision of the application: COMMIT, ROLLBACK, or "" so far.
    wanted: str = ""
    #: An END was sent, so there may be a verdict without a response.
    asked: bool = False
    asked_at_ms: int = 0
    #: (verdict, position) as acknowledged.
    verdict: tuple[str, int] | None = None
    #: Number of the last check that the producer received.
    checks: int = 0
    #: An operator was told that it is parked, and has requested no check since.
    aside: bool = False

    @property
    def prepared(self) -> bool:
        return all(said.acked is not None for said in self.messages)


@dataclass
class Book:
    """Everything that the clients know."""

    txs: dict[str, Tx] = field(default_factory=dict)
    plains: dict[str, Said] = field(default_factory=dict)
    #: Topics whose creation was acknowledged (True) or requested (False).
    topics: dict[str, bool] = field(default_factory=dict)
    deleted_topics: dict[str, bool] = field(default_factory=dict)
    #: (topic, queue) -> (offset, time) of the readers' commits, in order.
    offsets: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    #: (topic, queue) -> offset that a newly started broker returned: it is on the disk.
    offsets_kept: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Requested settings of the producer group, in order, and whether they were acknowledged.
    settings: list[tuple[tuple[int, str, int], bool]] = field(default_factory=list)
    #: ENDs of transactions that a power loss removed with the end of the log, at a level that permits it.
    gone: list[dict[str, str]] = field(default_factory=list)
    #: (topic, queue) -> {queue offset: (unique id, body crc)} of pulled messages.
    pulled: dict[tuple[str, int], dict[int, tuple[str, int]]] = field(default_factory=dict)
    #: Batches of the query, by number.
    batches: dict[int, Batch] = field(default_factory=dict)
    #: Incremented by each change.
    version: int = 0

    def forget_answers(self, knows_again: Callable[[int], bool]) -> None:
        """Responses prove nothing: durability ``memory``, and the power failed. Requests may have been executed.

        A message that the broker would take for a new one is not sent again: its client got its response long ago.
        """
        for plain in self.plains.values():
            plain.is_over |= plain.acked is not None and not knows_again(plain.sent_at_ms)
        for said in [*self.plains.values(), *(said for tx in self.txs.values() for said in tx.messages)]:
            said.acked = None
        for tx in self.txs.values():
            tx.verdict, tx.checks, tx.aside = None, 0, False
        self.settings = [(settings, False) for settings, _ in self.settings]
        self.offsets = {queue: [(one, NEVER_MS << 20) for one, _ in ones] for queue, ones in self.offsets.items()}
        self.topics = dict.fromkeys(self.topics, False)
        self.deleted_topics = dict.fromkeys(self.deleted_topics, False)
        self.pulled = {}
        batches.forget_answers(self.batches)
        self.version += 1

    def queues(self) -> set[tuple[str, int]]:
        said = [*self.plains.values(), *(said for tx in self.txs.values() for said in tx.messages)]
        in_batches = [part for batch in self.batches.values() for parts in batch.attempts.values() for part in parts]
        return {(one.topic, one.queue) for one in said} | {(batches.TOPIC, part.queue) for part in in_batches}


def config(**other: Any) -> BrokerConfig:
    """A broker that does nothing on its own, except as configured by ``other``."""
    values: dict[str, Any] = {
        "data": DATA, "port": 0, "name_port": 0, "segment_bytes": SEGMENT_BYTES, "checkpoint_interval_ms": NEVER_MS,
        "retention_check_ms": NEVER_MS, "retention_ms": 0, "disk_reserve_bytes": 0,
        "settings": BrokerSettings(default_topic_queues=2),
    }  # fmt: skip
    return BrokerConfig(**(values | other))


class House:
    """Consecutive runs of the broker on one disk."""

    def __init__(self, disk: FaultyDisk, book: Book, configured: BrokerConfig, now_ms: int = 0) -> None:
        self.disk = disk
        self.book = book
        self.config = configured
        self.clock = HandClock()
        self.clock.now_ms = now_ms or self.clock.now_ms
        #: Latest time of the crash before the first run.
        self.began_ms = self.clock.now_ms
        self.life: Life
        self.peer: Peer
        #: Replies are released before the sync: a planted bug.
        self.eager = False
        self._asking: dict[int, tuple[str, Any]] = {}

    # --- runs ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._asking.clear()
        self.life = Life(self.disk, self.clock, self.disk.crashes + 1, self.config)
        self.life.start()
        if self.eager:
            store = self.life.broker._store
            assert store is not None
            kind = type(store)
            store.__class__ = type("Eager", (kind,), {"durable_position": property(lambda s: s.log.end)})
        self.life.settle()
        self.peer = self.life.connect()

    def settle(self) -> None:
        """Run everything that is due, and write the index entries that are still staged."""
        self.life.settle()
        store = self.life.broker._store
        if store is not None and store.indexes_wait:
            self.clock.now_ms += round(limits.INDEX_WAIT_S * 1_000)
            self.life.settle()
        self.collect()

    def pass_time(self, milliseconds: int, step_ms: int = 100) -> None:
        for _ in range(-(-milliseconds // step_ms)):
            self.clock.now_ms += step_ms
            self.settle()

    @property
    def letter(self) -> str:
        """The recovery case of this run."""
        store = self.life.broker._store
        assert store is not None
        return store.recovery.case.letter

    @property
    def recovered_end(self) -> int:
        """The end of the log when this run began."""
        store = self.life.broker._store
        assert store is not None
        return store.recovery.end

    @property
    def redo_from(self) -> int:
        store = self.life.broker._store
        assert store is not None
        return store.recovery.redo_from

    def published(self) -> int:
        """The position up to which other processes, such as Spark, read at this moment."""
        page = read_watermark_page(self.disk, DATA / "shard-0" / "published")
        return page.position if isinstance(page, Watermark) and not page.rebuilding else 0

    @property
    def settings(self) -> BrokerSettings:
        return replace(
            self.config.settings, store_host=packed_host("127.0.0.1", 10_911), segment_bytes=self.config.segment_bytes
        )

    def knows_again(self, since_ms: int) -> bool:
        """Whether a message sent, or a transaction settled, at that time would be recognised as a repetition now."""
        return self.clock.now_ms - since_ms < self.config.settings.dedup_window_ms - 1_000

    def undecided(self) -> dict[str, Any]:
        """Transaction id -> the broker's state of it."""
        group = self.life.state.producer_groups.get(GROUP)
        return {} if group is None else {known.tx_id: known for known in group.undecided.values()}

    # --- requests --------------------------------------------------------------------------------------------

    def ask(self, what: str, subject: Any, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        opaque = self.peer.send(code, ext, body)
        self._asking[opaque] = (what, subject)
        self.book.version += 1
        return opaque

    def new_tx(
        self,
        tx_id: str,
        messages: int = 1,
        wanted: str = "",
        *,
        size: int = 300,
        delay_level: int = 0,
        topic: str = "A",
    ) -> Tx:
        tx = Tx(
            tx_id,
            [
                Said(
                    f"{tx_id}.{index}",
                    topic if index % 2 == 0 else "B",
                    index % 2,
                    _body(tx_id, index, size),
                    delay_level,
                )
                for index in range(messages)
            ],
            wanted,
        )
        self.book.txs[tx_id] = tx
        return tx

    def halves(self, tx_id: str, indexes: Iterable[int] | None = None) -> None:
        """Send halves; by default all of them."""
        tx = self.book.txs[tx_id]
        for index in range(len(tx.messages)) if indexes is None else indexes:
            said = tx.messages[index]
            said.sent_at_ms = said.sent_at_ms or self.clock.now_ms
            pairs = {
                "UNIQ_KEY": said.unique, "TRAN_MSG": "true", "PGROUP": GROUP, "HMQ_TX_ID": tx_id, "HMQ_TX_INDEX": str(index),
                "KEYS": f"k{tx_id}",
            }  # fmt: skip
            if index == len(tx.messages) - 1:
                pairs["HMQ_TX_COUNT"] = str(len(tx.messages))
            self._send("half", (tx_id, index), said, pairs, "4")

    def end(self, tx_id: str, wanted: str = "", *, from_check: bool = False) -> None:
        tx = self.book.txs[tx_id]
        wanted = wanted or tx.wanted
        ext = self.end_of(tx_id)
        if wanted == tx.wanted:
            tx.asked_at_ms = tx.asked_at_ms or self.clock.now_ms
            tx.asked = True
        ext |= {"commitOrRollback": wanted, "fromTransactionCheck": "true" if from_check else "false"}
        self.ask("end", (tx_id, wanted), 37, ext)

    def plain(self, unique: str, *, topic: str = "A", queue: int = 0, size: int = 300, delay_level: int = 0) -> None:
        """Send a message; with a name that was used before, the same one again."""
        said = self.book.plains.setdefault(unique, Said(unique, topic, queue, _body(unique, 0, size), delay_level))
        said.sent_at_ms = said.sent_at_ms or self.clock.now_ms
        self._send("plain", unique, said, {"UNIQ_KEY": unique, "KEYS": f"k{unique}"}, "0")

    def _send(self, what: str, subject: Any, said: Said, pairs: dict[str, str], sys_flag: str) -> None:
        if said.delay_level:
            pairs["DELAY"] = str(said.delay_level)
        ext = {
            "a": GROUP, "b": said.topic, "c": "TBW102", "d": "2", "e": str(said.queue), "f": sys_flag, "g": "1", "h": "0",
            "i": property_string(**pairs), "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        self.ask(what, subject, 310, ext, said.body)

    def make_topic(self, name: str) -> None:
        self.book.topics.setdefault(name, False)
        self.ask("topic", name, 17, {"topic": name, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"})

    def delete_topic(self, name: str) -> None:
        self.book.deleted_topics.setdefault(name, False)
        self.ask("topic deleted", name, 215, {"topic": name})

    def heartbeat(self, *, producer: bool = True, consumer: bool = False) -> None:
        """Connect as a producer of ``GROUP``, so that checks arrive; as a reader, so that the group is created."""
        subscription = {"topic": "A", "subString": "*", "subVersion": 1, "classFilterMode": False, "expressionType": "TAG",
                        "tagsSet": [], "codeSet": []}  # fmt: skip
        reader = {"groupName": READERS, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                  "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription], "unitMode": False}  # fmt: skip
        body = {
            "clientID": "house@1",
            "producerDataSet": [{"groupName": GROUP}] if producer else [],
            "consumerDataSet": [reader] if consumer else [],
        }
        self.ask("heartbeat", None, 34, {}, json.dumps(body).encode())

    def commit_offset(self, topic: str, queue: int, offset: int) -> None:
        self.book.offsets.setdefault((topic, queue), []).append((offset, self.clock.now_ms))
        ext = {"consumerGroup": READERS, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        self.ask("offset", None, 15, ext)

    def committed_offset(self, topic: str, queue: int) -> int | None:
        """The readers' committed offset according to the broker's response."""
        ext = {"consumerGroup": READERS, "topic": topic, "queueId": str(queue), "setZeroIfNotFound": "false"}
        opaque = self.peer.send(14, ext)
        self.life.settle()
        answer = self.peer.answers.pop(opaque)
        return int(answer.ext["offset"]) if answer.code == 0 else None

    def set_policy(self, check_limit: int, past_limit: str, skip_age_ms: int) -> None:
        """As an operator: change the policy of ``GROUP``."""
        settings = (check_limit, past_limit, skip_age_ms)
        self.book.settings.append((settings, False))
        body = {"check_limit": check_limit, "past_limit": past_limit, "skip_age_ms": skip_age_ms}
        ext = {"group": GROUP, "operator": "ada"}
        self.ask("settings", len(self.book.settings) - 1, 29_007, ext, json.dumps(body).encode())

    def look_at_list(self) -> None:
        """As an operator: list parked transactions."""
        self.ask("list", None, 29_002, {"group": GROUP})

    def ask_now(self, tx_id: str) -> None:
        self.book.txs[tx_id].aside = False
        self.ask("asked", None, 29_006, {"group": GROUP, "txId": tx_id})

    def ask_parked(self, most: int) -> None:
        for tx in self.book.txs.values():
            tx.aside = False
        self.ask("asked", None, 29_010, {"group": GROUP, "max": str(most)})

    def end_of(self, tx_id: str) -> dict[str, str]:
        """The fields of its END."""
        tx = self.book.txs[tx_id]
        first = tx.messages[0].acked
        assert first is not None, f"{tx_id} is ended before its first half was acknowledged"
        return {
            "producerGroup": GROUP, "HMQ_TX_ID": tx_id, "msgId": f"{tx_id}.0", "tranStateTableOffset": first[0],
            "commitLogOffset": str(int(first[1][-16:], 16)), "commitOrRollback": tx.wanted, "fromTransactionCheck": "false",
        }  # fmt: skip

    def answer_checks(self) -> None:
        """As the producer: answer every received check with the application's decision."""
        pushes, self.peer.pushes[:] = list(self.peer.pushes), []
        for push in pushes:
            if push.code == 39:
                tx_id = self._checked(push)
                if self.book.txs[tx_id].wanted:
                    self.end(tx_id, from_check=True)

    def _checked(self, push: Answer) -> str:
        message, _, _ = decode_message(push.body)
        return (properties.find(message.properties, "HMQ_TX_ID") or b"").decode()

    # --- responses -------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Record the responses so far, including those of this very moment."""
        for opaque in sorted(self.peer.answers.keys() & self._asking.keys()):
            answer = self.peer.answers.pop(opaque)
            what, subject = self._asking.pop(opaque)
            self.book.version += 1
            getattr(self, f"_heard_{what.replace(' ', '_')}")(answer, subject)
        last: dict[str, int] = {}
        for push in self.peer.pushes:
            if push.code == 39:
                message, _, _ = decode_message(push.body)
                last[self._checked(push)] = int(
                    properties.find(message.properties, properties.TRANSACTION_CHECK_TIMES) or 0
                )
        for tx_id, number in last.items():
            if number != self.book.txs[tx_id].checks:
                self.book.txs[tx_id].checks = number
                self.book.version += 1

    def _heard_half(self, answer: Answer, subject: tuple[str, int]) -> None:
        tx_id, index = subject
        tx = self.book.txs[tx_id]
        said = tx.messages[index]
        if answer.code == 604:
            standing = (answer.ext["HMQ_VERDICT"], int(answer.ext["HMQ_POSITION"]))
            if not tx.asked or standing[0] != VERDICTS[tx.wanted] or tx.verdict not in (None, standing):
                raise Violation(f"Agreement: {tx_id} was {tx.verdict}; its half, sent again, was told {standing}")
            return
        if answer.code == NO_ROOM:
            return
        if answer.code != 0:
            raise Violation(f"half {said.unique} was refused: {answer}")
        place = (answer.ext["queueOffset"], answer.ext["msgId"])
        if said.acked not in (None, place):
            raise Violation(f"Once: half {said.unique} was at {said.acked}, now {place}")
        if tx.verdict is not None:
            raise Violation(f"Agreement: a half of {tx_id} was taken, though {tx.verdict} stands")
        said.acked = place

    def _heard_end(self, answer: Answer, subject: tuple[str, str]) -> None:
        tx_id, wanted = subject
        tx = self.book.txs[tx_id]
        standing = answer.ext.get("HMQ_VERDICT", "")
        if wanted != tx.wanted:
            if answer.code == 0:
                raise Violation(f"Agreement: {tx_id} took the opposite verdict {wanted}")
            if tx.verdict is not None and standing != tx.verdict[0] and not self._past_retention(tx):
                raise Violation(f"Agreement: {tx_id} was {tx.verdict}; the opposite was told {answer}")
            return
        if answer.code != 0:
            if standing == "" and self._past_retention(tx):
                return
            raise Violation(f"Agreement: {tx_id}, asked {wanted}, was {tx.verdict}: {answer}")
        verdict = (standing, int(answer.ext["HMQ_POSITION"]))
        if standing != VERDICTS[wanted] or tx.verdict not in (None, verdict):
            raise Violation(f"Agreement: {tx_id} was {tx.verdict}, now {verdict}")
        tx.verdict = verdict

    def _past_retention(self, tx: Tx) -> bool:
        return tx.verdict is not None and tx.verdict[1] < self.life.state.log_start

    def _heard_plain(self, answer: Answer, unique: str) -> None:
        if answer.code == NO_ROOM:
            return
        if answer.code != 0:
            raise Violation(f"plain {unique} was refused: {answer}")
        said = self.book.plains[unique]
        place = (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["msgId"])
        if said.acked is not None and said.acked[2] != place[2] and said.delay_level == 0:
            raise Violation(f"Once: plain {unique} was at {said.acked}, now {place}")
        said.acked = said.acked or place

    def _heard_half_batch(self, answer: Answer, subject: tuple[int, str, int]) -> None:
        if answer.code != NO_ROOM:
            batches.heard_half_batch(self, answer, subject)

    def _heard_decision(self, answer: Answer, number: int) -> None:
        batches.heard_decision(self, answer, number)

    def _heard_contradiction(self, answer: Answer, number: int) -> None:
        batches.heard_contradiction(self, answer, number)

    def _heard_topic(self, answer: Answer, name: str) -> None:
        if answer.code != 0:
            raise Violation(f"topic {name} was refused: {answer}")
        self.book.topics[name] = True

    def _heard_topic_deleted(self, answer: Answer, name: str) -> None:
        if answer.code != 0:
            raise Violation(f"topic {name} was not deleted: {answer}")
        self.book.deleted_topics[name] = True

    def _heard_heartbeat(self, answer: Answer, _: None) -> None:
        if answer.code != 0:
            raise Violation(f"a heartbeat was refused: {answer}")

    _heard_offset = _heard_heartbeat

    def _heard_settings(self, answer: Answer, place: int) -> None:
        settings, _ = self.book.settings[place]
        stands = json.loads(answer.body)
        if (stands["check_limit"], stands["past_limit"], stands["skip_age_ms"]) != settings:
            raise Violation(f"settings {settings} were asked for, {stands} stand")
        self.book.settings[place] = (settings, True)

    def _heard_list(self, answer: Answer, _: None) -> None:
        for row in json.loads(answer.body):
            self.book.txs[row["tx_id"]].aside = bool(row["set_aside"])

    def _heard_asked(self, answer: Answer, _: None) -> None:
        if answer.code != 0:
            raise Violation(f"an operator could not ask: {answer}")

    def _heard_gone(self, answer: Answer, ext: dict[str, str]) -> None:
        if answer.code != 1 or answer.ext.get("HMQ_VERDICT"):
            raise Violation(
                f"Recovery: {ext['HMQ_TX_ID']} was lost with the end of the log, and has an answer: {answer}"
            )

    # --- visible messages ------------------------------------------------------------------------------------

    def visible(self) -> dict[tuple[str, int], dict[int, tuple[str, int]]]:
        """Everything that can be pulled now: (topic, queue) -> queue offset -> (unique id, body crc). Recorded in the book."""
        seen: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}
        for topic, queue in sorted(self.book.queues()):
            found, offset = seen.setdefault((topic, queue), {}), 0
            while True:
                opaque = self.peer.send(11, _pull(topic, queue, offset))
                self.life.settle()
                answer = self.peer.answers.pop(opaque)
                if answer.code == 21 and int(answer.ext["nextBeginOffset"]) > offset:
                    offset = int(answer.ext["nextBeginOffset"])
                    continue
                if answer.code != 0:
                    break
                at = 0
                while at < len(answer.body):
                    message, _, size = decode_message(answer.body, at)
                    unique = (properties.find(message.properties, "UNIQ_KEY") or b"").decode()
                    if body_crc_of(message.body) != message.body_crc:
                        raise Violation(f"Durable: the body of {unique} is damaged")
                    found[message.queue_offset] = (unique, message.body_crc)
                    at += size
                offset = int(answer.ext["nextBeginOffset"])
        for queue_of, messages in seen.items():
            before = self.book.pulled.setdefault(queue_of, {})
            first = min(messages, default=0)
            for offset, value in before.items():
                if messages and offset >= first and messages.get(offset) != value:
                    raise Violation(f"Durable: {queue_of}@{offset} was pulled as {value}, now {messages.get(offset)}")
            before.update(messages)
        self.book.version += 1
        return seen


def _pull(topic: str, queue: int, offset: int) -> dict[str, str]:
    return {
        "consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "1000", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0",
    }  # fmt: skip


def _body(name: str, index: int, size: int) -> bytes:
    return (f"{name}/{index}:".encode() * (size // 4 + 1))[:size]


def book_copy(book: Book) -> Book:
    copy: Book = pickle.loads(pickle.dumps(book))
    return copy
