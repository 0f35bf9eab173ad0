"""Power loss at random points: the real broker on a disk that drops, tears and reorders what was not synced.

Each seed is a story: clients prepare, end, repeat and pull over their connections; syncs and slow work happen when the rng say;
segments roll, checkpoints and trims come by. At random steps of the disk, inside a batch, a roll, a checkpoint, a snapshot or a
trim, power is lost. The disk keeps what was synced and any part of the rest; the broker starts again, and the promises are
looked at against what clients were *answered*:

    Agreement      an acknowledged verdict stands, its opposite is refused, whatever is asked again
    Validity       nothing is visible that nobody committed, nothing that was rolled back
    Once           no unique id twice, though halves and plain messages are sent again after the loss
    All or none    of a transaction everything is visible, or nothing
    Durable        what was acknowledged, pulled or published is still there, at the same place
    Retention      an acknowledged half without a verdict is still undecided, with its first answer
    Order          of two commits the second of which began after the first was acknowledged, the first stands first
    Time           store times never go back within a queue
    Recovery       snapshot and redo give the same state as the log alone
    Progress       in the end a producer answers checks, and everything is settled within a bound

Run alone: ``python -m tests.simulation.power_loss --seeds 2000``; ``--seed S`` repeats one. ``--break sync`` stubs fdatasync out,
``--break reply`` lets answers leave before the sync: both must end in violations.
"""

import argparse
import itertools
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from halfmq.broker.config import BrokerConfig
from halfmq.broker.recovery import recover
from halfmq.core.digest import durable_digest
from halfmq.core.transaction import invariants
from halfmq.model import properties
from halfmq.model.stored_message import body_crc_of
from halfmq.model.stored_message import decode as decode_message
from halfmq.store.group_flush import HandFlush
from halfmq.store.store import Store
from halfmq.testing.faulty_disk import FaultyDisk, PowerLost
from tests.simulation.world import DATA, HandClock, Life, Peer, SeededEntropy
from tests.support.raw_client import Answer, property_string

GROUP = "pgroup"
TOPICS = ("Alpha", "Beta")
QUEUES = 2
#: Shorter than a story, so that logs are trimmed in it.
DEDUP_WINDOW_MS = 10_000
COMMIT, ROLLBACK = "8", "12"


class Violation(AssertionError):
    """A promise does not hold."""


class Tx:
    """What the client side knows of one transaction."""

    def __init__(self, tx_id: str, count: int, commits: bool) -> None:
        self.tx_id = tx_id
        self.count = count
        self.commits = commits
        self.sent: dict[int, tuple[str, int, bytes]] = {}
        #: index -> (half index, offset message id) as acknowledged
        self.acked: dict[int, tuple[str, str]] = {}
        self.asked = False
        self.end_first_sent = -1
        self.end_first_ms = 0
        self.ends_sent = 0
        #: (verdict, position) as acknowledged, and when
        self.verdict: tuple[str, int] | None = None
        self.verdict_seq = -1


class Plain:
    def __init__(self, unique: str, topic: str, queue: int, body: bytes, sent_ms: int) -> None:
        self.unique, self.topic, self.queue, self.body = unique, topic, queue, body
        self.first_sent_ms = sent_ms
        self.acked: tuple[str, str, str] | None = None


class Story:
    """One seed."""

    def __init__(self, seed: int, breakage: str = "") -> None:
        self.seed = seed
        self.breakage = breakage
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(seed)
        self.disk.sync_is_a_lie = breakage == "sync"
        self.clock = HandClock()
        self.config = BrokerConfig(
            data=DATA, port=0, name_port=0, segment_bytes=1 << 16, checkpoint_interval_ms=1_000, retention_check_ms=700,
            retention_bytes=self.rng.choice((0, 100_000, 200_000)), disk_reserve_bytes=0,
            dedup_window_ms=DEDUP_WINDOW_MS,
        )  # fmt: skip
        self.txs: dict[str, Tx] = {}
        self.plains: dict[str, Plain] = {}
        #: (topic, queue) -> {queue offset: (unique id, body crc)} as pulled by anyone, ever
        self.observed: dict[tuple[str, int], dict[int, tuple[str, int]]] = {}
        self.last_store_time: dict[tuple[str, int], int] = {}
        self.sequence = 0
        self.serial = 0
        self.life: Life
        self.peers: list[Peer] = []
        #: opaque -> what it was, per peer number
        self.asking: dict[tuple[int, int], tuple[str, Any, Any]] = {}
        self.counts: Counter[str] = Counter()

    # --- lives -----------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        self.begin_life(first=True)
        for _ in range(self.rng.randint(2, 4)):
            try:
                self.live(self.rng.randint(10, 40))
            except PowerLost:
                self.counts["cut_in_operation"] += 1
            self.lose_power()
        self.finish()
        return self.counts

    def lose_power(self) -> None:
        self.counts["crashes"] += 1
        while True:
            self.disk.crash()
            self.peers.clear()
            self.asking.clear()
            self.clock.now_ms += self.rng.randint(0, 3_000)
            if self.rng.random() < 0.2:
                self.disk.power_fails_after(self.rng.randint(1, 30))  # while it recovers
            try:
                self.begin_life()
                self.look_at_promises()
                return
            except PowerLost:
                self.counts["cut_in_recovery"] += 1

    def begin_life(self, first: bool = False) -> None:
        if not first and self.rng.random() < 0.4:
            self.compare_recoveries()
        self.life = Life(self.disk, self.clock, self.seed * 100 + self.disk.crashes, self.config)
        self.life.start()
        if self.breakage == "reply":
            store = self.life.broker._store
            assert store is not None
            type_of = type(store)
            # A store that calls durable what is only written: answers leave before the sync.
            store.__class__ = type("Eager", (type_of,), {"durable_position": property(lambda s: s.log.end)})
        self.life.settle()
        self.peers = [self.life.connect() for _ in range(2)]

    def compare_recoveries(self) -> None:
        """The state of snapshot and redo is the state of the log alone."""
        digests = []
        for stripped in (False, True):
            copy = self.disk.fork(1)
            copy.kill()
            if stripped:
                for path in copy.paths():
                    if path.parent != DATA and path.parent.name != "log":
                        copy.remove(path)
            store = Store.open(
                copy, DATA, entropy=SeededEntropy(1), segment_bytes=1 << 16, make_syncer=HandFlush, reserve_bytes=0
            )
            engine, _ = recover(
                store, self.config.settings_for(store) if hasattr(self.config, "settings_for") else self.settings(store)
            )
            digests.append(durable_digest(engine.state))
            invariants.check(engine.state)
            store.close()
        self.counts["recoveries_compared"] += 1
        if digests[0] != digests[1]:
            raise Violation("Recovery: snapshot and redo differ from the log alone")

    def settings(self, store: Store) -> Any:
        from dataclasses import replace

        from halfmq.broker.config import packed_host

        return replace(
            self.config.settings, store_host=packed_host("127.0.0.1", 10_911), segment_bytes=store.segment_bytes
        )

    # --- what clients do -------------------------------------------------------------------------------------

    def live(self, ticks: int) -> None:
        rng = self.rng
        if rng.random() < 0.7:
            self.disk.power_fails_after(rng.randint(5, 250))
        for _ in range(ticks):
            for _ in range(rng.randint(1, 5)):
                rng.choice(
                    (
                        self.new_tx,
                        self.new_tx,
                        self.continue_tx,
                        self.end_tx,
                        self.end_tx,
                        self.plain,
                        self.again,
                        self.pull,
                    )
                )()
            self.life.loop.run_ready()
            if rng.random() < 0.6:
                self.life.sync()
            if rng.random() < 0.5:
                self.life.offload.run_one()
            self.life.loop.run_ready()
            self.clock.now_ms += rng.choice((0, 1, 50, 400))
            self.collect()
        self.counts["ticks"] += ticks

    def peer(self) -> Peer:
        return self.rng.choice(self.peers)

    def ask(self, what: str, subject: Any, detail: Any, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        peer = self.peer()
        self.asking[peer.number, peer.send(code, ext, body)] = (what, subject, detail)

    def new_tx(self) -> None:
        self.serial += 1
        tx = Tx(f"t{self.seed}-{self.serial}", self.rng.choice((1, 1, 2, 3)), self.rng.random() < 0.7)
        self.txs[tx.tx_id] = tx
        for index in range(tx.count if self.rng.random() < 0.8 else 1):
            self.half(tx, index)

    def half(self, tx: Tx, index: int) -> None:
        if index not in tx.sent:
            body = self.rng.randbytes(self.rng.choice((10, 300, 1_500, 4_000)))
            tx.sent[index] = (self.rng.choice(TOPICS), self.rng.randrange(QUEUES), body)
        topic, queue, body = tx.sent[index]
        pairs = {
            "UNIQ_KEY": f"{tx.tx_id}.{index}", "TRAN_MSG": "true", "PGROUP": GROUP, "HMQ_TX_ID": tx.tx_id, "HMQ_TX_INDEX": str(index),
        }  # fmt: skip
        if index == tx.count - 1:
            pairs["HMQ_TX_COUNT"] = str(tx.count)
        self.ask("half", tx, (index, tx.verdict), 310, self.send_ext(topic, queue, property_string(**pairs), "4"), body)

    def send_ext(self, topic: str, queue: int, text: str, sys_flag: str = "0") -> dict[str, str]:
        return {
            "a": GROUP, "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": sys_flag, "g": "1", "h": "0", "i": text,
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip

    def continue_tx(self) -> None:
        """Send a half that was not acknowledged, for the first time or again."""
        unfinished = [tx for tx in self.txs.values() if len(tx.acked) < tx.count and tx.verdict is None]
        if unfinished:
            tx = self.rng.choice(unfinished)
            self.half(tx, next(index for index in range(tx.count) if index not in tx.acked))

    def end_tx(self) -> None:
        ready = [tx for tx in self.txs.values() if len(tx.acked) == tx.count and tx.verdict is None]
        if ready:
            self.end(self.rng.choice(ready))

    def end(self, tx: Tx, wanted: str = "", from_check: bool = False) -> None:
        wanted = wanted or (COMMIT if tx.commits else ROLLBACK)
        half_index, message_id = tx.acked[0]
        ext = {
            "producerGroup": GROUP, "HMQ_TX_ID": tx.tx_id, "msgId": f"{tx.tx_id}.0", "tranStateTableOffset": half_index,
            "commitLogOffset": str(int(message_id[-16:], 16)), "commitOrRollback": wanted,
            "fromTransactionCheck": "true" if from_check else "false",
        }  # fmt: skip
        if wanted == (COMMIT if tx.commits else ROLLBACK):
            tx.asked = True
            tx.ends_sent += 1
            if tx.end_first_sent < 0:
                self.sequence += 1
                tx.end_first_sent = self.sequence
                tx.end_first_ms = self.clock.now_ms
        self.ask("end", tx, wanted, 37, ext)

    def plain(self) -> None:
        self.serial += 1
        plain = Plain(
            f"p{self.seed}-{self.serial}",
            self.rng.choice(TOPICS),
            self.rng.randrange(QUEUES),
            self.rng.randbytes(200),
            self.clock.now_ms,
        )
        self.plains[plain.unique] = plain
        self.send_plain(plain)

    def send_plain(self, plain: Plain) -> None:
        self.ask(
            "plain",
            plain,
            None,
            310,
            self.send_ext(plain.topic, plain.queue, property_string(UNIQ_KEY=plain.unique)),
            plain.body,
        )

    def again(self) -> None:
        """Ask something again whose answer is not known, within the window: the second answer must be as good as the first."""
        since_ms = self.clock.now_ms - DEDUP_WINDOW_MS
        lost = [plain for plain in self.plains.values() if plain.acked is None and plain.first_sent_ms > since_ms]
        in_flight = {id(subject) for what, subject, _ in self.asking.values() if what == "plain"}
        lost = [plain for plain in lost if id(plain) not in in_flight]
        if lost:
            self.send_plain(self.rng.choice(lost))

    def pull(self) -> None:
        topic, queue = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        seen = self.observed.get((topic, queue), {})
        self.ask("pull", topic, queue, 11, self.pull_ext(topic, queue, max(seen, default=-1) + 1))

    def pull_ext(self, topic: str, queue: int, offset: int) -> dict[str, str]:
        return {
            "consumerGroup": "watch", "topic": topic, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": "1000",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip

    # --- what they are told ----------------------------------------------------------------------------------

    def collect(self) -> None:
        for peer in self.peers:
            for opaque in sorted(peer.answers):
                answer = peer.answers.pop(opaque)
                what, subject, detail = self.asking.pop((peer.number, opaque))
                self.sequence += 1
                getattr(self, f"heard_{what}")(answer, subject, detail)

    def heard_half(self, answer: Answer, tx: Tx, sent: tuple[int, tuple[str, int] | None]) -> None:
        index, stood = sent  # the verdict that was acknowledged before the half went out
        if answer.code == 604:
            self.counts["half_after_settlement"] += 1
            if not tx.asked:
                raise Violation(f"Validity: {tx.tx_id} is settled though nobody gave a verdict: {answer}")
            standing = ("COMMITTED" if tx.commits else "ROLLED_BACK", int(answer.ext["HMQ_POSITION"]))
            if answer.ext["HMQ_VERDICT"] != standing[0] or tx.verdict not in (None, standing):
                raise Violation(f"Agreement: {tx.tx_id} was {tx.verdict}; its half, sent again, was told {answer}")
            return
        if answer.code != 0:
            raise Violation(f"a half was refused: {answer}")
        place = (answer.ext["queueOffset"], answer.ext["msgId"])
        if tx.acked.setdefault(index, place) != place:
            raise Violation(f"Once: half {tx.tx_id}.{index} was at {tx.acked[index]}, now {place}")
        if stood is not None:
            raise Violation(f"Agreement: a half of {tx.tx_id} was taken, though {stood} stands")
        self.counts["halves"] += 1

    def heard_end(self, answer: Answer, tx: Tx, wanted: str) -> None:
        right = COMMIT if tx.commits else ROLLBACK
        standing = answer.ext.get("HMQ_VERDICT", "")
        if wanted != right:
            if answer.code == 0:
                raise Violation(f"Agreement: {tx.tx_id} took the opposite verdict {wanted}")
            return
        if answer.code != 0:
            if standing == "" and self.may_be_past_retention(tx):
                self.counts["past_retention"] += 1
                return
            raise Violation(f"Agreement: {tx.tx_id}, asked {wanted}, was {tx.verdict}: {answer}")
        expected = "COMMITTED" if tx.commits else "ROLLED_BACK"
        position = int(answer.ext["HMQ_POSITION"])
        if standing != expected or (tx.verdict is not None and tx.verdict != (standing, position)):
            raise Violation(f"Agreement: {tx.tx_id} was {tx.verdict}, now {standing} at {position}")
        if tx.verdict is None:
            tx.verdict = (standing, position)
            tx.verdict_seq = self.sequence
        self.counts["verdicts"] += 1

    def may_be_past_retention(self, tx: Tx) -> bool:
        """The record of its verdict may be trimmed: it was answered there, or asked for before and never answered."""
        log_start = self.life.state.log_start
        if tx.verdict is not None:
            return tx.verdict[1] < log_start
        return tx.ends_sent > 1 and int(tx.acked[0][1][-16:], 16) < log_start

    def heard_plain(self, answer: Answer, plain: Plain, _: None) -> None:
        if answer.code != 0:
            raise Violation(f"a plain message was refused: {answer}")
        place = (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["msgId"])
        if plain.acked is None:
            plain.acked = place
        self.counts["plains"] += 1

    def heard_pull(self, answer: Answer, topic: str, queue: int) -> None:
        if answer.code == 0:
            self.take_messages(topic, queue, answer.body)

    def take_messages(self, topic: str, queue: int, body: bytes) -> int:
        at, seen = 0, self.observed.setdefault((topic, queue), {})
        last = -1
        while at < len(body):
            message, _, size = decode_message(body, at)
            unique = (properties.find(message.properties, "UNIQ_KEY") or b"").decode()
            if body_crc_of(message.body) != message.body_crc:
                raise Violation(f"Durable: the body of {unique} is damaged")
            value = (unique, message.body_crc)
            if seen.setdefault(message.queue_offset, value) != value:
                raise Violation(
                    f"Durable: {topic}/{queue}@{message.queue_offset} was {seen[message.queue_offset]}, now {value}"
                )
            last = message.queue_offset
            at += size
        self.counts["pulled"] += 1
        return last

    # --- promises --------------------------------------------------------------------------------------------

    def everything(self) -> dict[tuple[str, int], dict[int, tuple[str, int, int]]]:
        """What is visible now, read over the wire: (topic, queue) -> queue offset -> (unique id, crc, store time)."""
        visible: dict[tuple[str, int], dict[int, tuple[str, int, int]]] = {}
        peer = self.life.connect()
        for topic in TOPICS:
            for queue in range(QUEUES):
                found, offset = visible.setdefault((topic, queue), {}), 0
                while True:
                    opaque = peer.send(11, self.pull_ext(topic, queue, offset))
                    self.life.settle()
                    answer = peer.answers.pop(opaque)
                    if answer.code == 21 and int(answer.ext["nextBeginOffset"]) > offset:
                        offset = int(answer.ext["nextBeginOffset"])
                        continue
                    if answer.code != 0:
                        break
                    at = 0
                    while at < len(answer.body):
                        message, _, size = decode_message(answer.body, at)
                        unique = (properties.find(message.properties, "UNIQ_KEY") or b"").decode()
                        found[message.queue_offset] = (unique, message.body_crc, message.store_time_ms)
                        at += size
                    self.take_messages(topic, queue, answer.body)
                    offset = int(answer.ext["nextBeginOffset"])
        return visible

    def look_at_promises(self, final: bool = False) -> None:
        invariants.check(self.life.state)
        visible = self.everything()
        log_start = self.life.state.log_start
        places: dict[str, tuple[str, int, int]] = {}
        for (topic, queue), messages in visible.items():
            times = [store_time for _, (_, _, store_time) in sorted(messages.items())]
            if times != sorted(times):
                raise Violation(f"Time: store times of {topic}/{queue} go back: {times}")
            first = min(messages, default=0)
            for offset, (unique, crc) in self.observed.get((topic, queue), {}).items():
                if offset >= first and messages and messages.get(offset, ("", 0, 0))[:2] != (unique, crc):
                    raise Violation(f"Durable: {topic}/{queue}@{offset} was {unique}, now {messages.get(offset)}")
            for offset, (unique, _, _) in messages.items():
                if unique in places:
                    raise Violation(f"Once: {unique} at {places[unique]} and at {(topic, queue, offset)}")
                places[unique] = (topic, queue, offset)
        self.look_at_transactions(places, log_start, final)
        for plain in self.plains.values():
            if plain.acked and plain.unique not in places and int(plain.acked[2][-16:], 16) >= log_start:
                raise Violation(f"Durable: plain {plain.unique} was acknowledged at {plain.acked} and is gone")
        self.look_at_order(places)
        if not final:
            self.ask_again()
        self.counts["looks"] += 1
        self.counts["looks_after_a_trim"] += log_start > 0

    def look_at_transactions(self, places: dict[str, tuple[str, int, int]], log_start: int, final: bool) -> None:
        for tx in self.txs.values():
            shown = [f"{tx.tx_id}.{index}" in places for index in range(tx.count)]
            if any(shown):
                if not (tx.commits and tx.asked):
                    raise Violation(
                        f"Validity: {tx.tx_id} is visible; it was {'never ended' if tx.commits else 'rolled back'}"
                    )
                if not all(shown):
                    raise Violation(f"All or none: {tx.tx_id} shows {shown}")
            elif tx.commits and tx.verdict is not None and tx.verdict[1] >= log_start:
                raise Violation(f"Durable: {tx.tx_id} was committed at {tx.verdict} and is not visible")
            elif final and tx.commits and tx.verdict is None:
                raise Violation(f"Progress: {tx.tx_id} has no verdict in the end")

    def look_at_order(self, places: dict[str, tuple[str, int, int]]) -> None:
        in_queue: dict[tuple[str, int], list[tuple[int, Tx]]] = {}
        for tx in self.txs.values():
            for index in range(tx.count):
                place = places.get(f"{tx.tx_id}.{index}")
                if place is not None and tx.verdict is not None:
                    in_queue.setdefault(place[:2], []).append((place[2], tx))
        for queue, entries in in_queue.items():
            entries.sort(key=lambda entry: entry[0])
            for (_, before), (_, after) in itertools.pairwise(entries):
                if before is not after and 0 < after.verdict_seq < before.end_first_sent:
                    raise Violation(
                        f"Order: in {queue} {before.tx_id} stands before {after.tx_id}, which was settled first"
                    )

    def ask_again(self) -> None:
        """Ends with the same and the opposite verdict, halves and plain messages sent again, on new connections."""
        settled = [tx for tx in self.txs.values() if tx.verdict is not None]
        for tx in self.rng.sample(settled, min(4, len(settled))):
            self.end(tx)
            self.end(tx, ROLLBACK if tx.commits else COMMIT)
        waiting = [tx for tx in self.txs.values() if tx.acked and not tx.asked]
        known = [tx for tx in settled if self.clock.now_ms < tx.end_first_ms + DEDUP_WINDOW_MS]
        for prepared in (waiting, known):
            for tx in self.rng.sample(prepared, min(4, len(prepared))):
                self.half(tx, self.rng.choice(sorted(tx.acked)))
        self.life.settle()
        self.collect()

    def finish(self) -> None:
        """Everything heals; a producer answers checks; within a bound all is settled, and the books are closed."""
        self.disk.heal()
        peer = self.life.connect()
        heartbeat = {"clientID": "end@1", "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
        for tx in self.txs.values():
            for index in range(tx.count):
                if index not in tx.acked and not (tx.asked or tx.verdict):
                    self.half(tx, index)
        self.life.settle()
        self.collect()
        peer.send(34, {}, json.dumps(heartbeat).encode())
        deadline = self.clock.now_ms + 300_000
        while self.undecided() and self.clock.now_ms < deadline:
            self.clock.now_ms += 500
            self.life.settle()
            for push in peer.pushes:
                if push.code == 39:
                    message, _, _ = decode_message(push.body)
                    tx = self.txs[(properties.find(message.properties, "HMQ_TX_ID") or b"").decode()]
                    self.end(tx, from_check=True)
                    self.counts["checks"] += 1
            peer.pushes.clear()
            self.life.settle()
            self.collect()
        if self.undecided():
            raise Violation(f"Progress: {self.undecided()} transactions are undecided after 300 s with a live producer")
        # A verdict may have been durable while its answer was lost: ask once more, so that the client knows too.
        for tx in self.txs.values():
            if tx.verdict is None and len(tx.acked) == tx.count:
                self.end(tx)
        self.life.settle()
        try:
            self.collect()
        except Violation:
            if self.life.state.log_start == 0:
                raise
            self.counts["past_retention"] += 1
        self.look_at_promises(final=self.life.state.log_start == 0)

    def undecided(self) -> int:
        return sum(len(group.undecided) for group in self.life.state.producer_groups.values())


def run_seed(seed: int, breakage: str = "") -> tuple[Counter[str], str]:
    """(what was looked at, the violation or an empty text)."""
    story = Story(seed, breakage)
    try:
        return story.run(), ""
    except Violation as violation:
        return story.counts, f"seed {seed}: {violation}"
    except PowerLost:
        raise
    except Exception as error:
        if breakage:  # a broken promise may also show as damage that recovery refuses
            return story.counts, f"seed {seed}: {type(error).__name__}: {error}"
        raise


def run_seeds(seeds: range, breakage: str = "") -> tuple[Counter[str], list[str]]:
    total: Counter[str] = Counter()
    violations = []
    for seed in seeds:
        counts, violation = run_seed(seed, breakage)
        total += counts
        total["seeds"] += 1
        if violation:
            violations.append(violation)
    return total, violations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--break", dest="breakage", choices=("", "sync", "reply"), default="")
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else arguments.first
    started = time.monotonic()
    counts, violations = run_seeds(
        range(first, first + (1 if arguments.seed is not None else arguments.seeds)), arguments.breakage
    )
    print(json.dumps({"seconds": round(time.monotonic() - started, 1), "violations": len(violations), **counts}))
    for violation in violations[:20]:
        print(violation)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
