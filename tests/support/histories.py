"""Random legal histories of a broker that keeps its promises: a model with a log, queues and clients, without bytes.

Everything legal that makes a history hard to check happens: responses are lost and requests repeated, broker and clients are killed,
verdicts are acknowledged twice, checks are answered UNKNOWN, transactions have several messages, the log is trimmed and halves are copied
forward, policies and operators decide, what they did to a database is found and forgotten, consumers receive messages again, groups die.
Messages go to an outbox, also after half messages, are held, set aside, skipped, and published in batches of which some are lost or
published twice.

    history = made(seed, transactions=40)         # history.events in order of time; history.files by writer

``marks`` give the end of the log at moments of the history, so that a test can plant something that fits. Offsets are multiples of
64, which leaves space for plants between them.
"""

import copy
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from halfmq.model.checksum import crc32
from halfmq.testing.history.events import (
    Answered,
    AnyEvent,
    BranchWritten,
    CheckReceived,
    CheckUnanswered,
    Damage,
    DamageForgotten,
    DamageListed,
    EndAsked,
    EpochTaken,
    Fault,
    FileStarted,
    HalfSent,
    Local,
    Logged,
    OutboxWritten,
    OutcomeReported,
    PlainSent,
    QueueRead,
    Seen,
    Settled,
    Started,
    Verdict,
)

COMMITTED: Verdict = "COMMITTED"
ROLLED_BACK: Verdict = "ROLLED_BACK"
ROOM = 64


@dataclass
class Options:
    """What may happen, as probabilities; ``drawn`` draws them from the seed."""

    transactions: int = 40
    plain: float = 0.2
    several: float = 0.2
    kills: int = 1
    lost_answers: float = 0.1
    unsaid: float = 0.1
    rollbacks: float = 0.25
    operators: float = 0.02
    keys: float = 0.3
    delayed: float = 0.05
    again: float = 0.05
    policy_group: bool = False
    dead_group: bool = False
    trims: int = 0
    #: Responses contain positions, and the log is read.
    with_log: bool = True
    #: As with Apache RocketMQ: END is one-way, messages carry no transaction, and each message is its own transaction.
    stock: bool = False
    #: 0: chosen at random.
    topics: int = 0
    #: Time between transactions, microseconds.
    pace_us: int = 400
    readers: int = 1
    #: Transactions that write to an outbox. That of the group ``billing`` has a target that cannot recognise a message.
    outbox: float = 0.0


def drawn(seed: int) -> Options:
    rng = random.Random(f"options {seed}")
    stock = rng.random() < 0.25
    return Options(
        transactions=rng.choice((1, 3, 10, 20, 40)),
        plain=rng.choice((0.0, 0.2, 0.8)),
        several=0.0 if stock else rng.choice((0.0, 0.3, 0.8)),
        kills=rng.choice((0, 1, 2, 4)),
        lost_answers=rng.choice((0.0, 0.1, 0.5)),
        unsaid=rng.choice((0.0, 0.1, 0.5)),
        rollbacks=rng.choice((0.0, 0.25, 0.9)),
        operators=rng.choice((0.0, 0.1, 0.6)),
        keys=rng.choice((0.0, 0.5, 1.0)),
        delayed=rng.choice((0.0, 0.2)),
        again=rng.choice((0.0, 0.3)),
        policy_group=rng.random() < 0.3,
        dead_group=rng.random() < 0.3,
        trims=0 if stock else rng.choice((0, 0, 1, 3)),
        with_log=not stock and rng.random() < 0.7,
        stock=stock,
        pace_us=rng.choice((5, 400, 20_000)),
        readers=rng.choice((1, 1, 2)),
        outbox=rng.choice((0.0, 0.0, 0.3)),
    )


class Mark(NamedTuple):
    us: int
    offset: int


@dataclass
class History:
    options: Options
    events: list[AnyEvent]
    #: (time, log offset) of each record.
    marks: list[Mark]
    #: When brokers were killed and restarted.
    restarts: list[tuple[int, int]]
    settled_us: int
    end_us: int

    def files(self) -> dict[str, list[AnyEvent]]:
        by: dict[str, list[AnyEvent]] = {}
        for event in self.events:
            by.setdefault(event.by, []).append(event)
        return by

    def write(self, directory: Path) -> list[Path]:
        directory.mkdir(parents=True, exist_ok=True)
        encode = msgspec.json.Encoder().encode_lines
        paths = []
        for by, events in self.files().items():
            paths.append(directory / f"{by}.jsonl")
            paths[-1].write_bytes(encode(events))
        return paths


class _Message:
    __slots__ = ("crc", "delay_ms", "first", "index", "key", "now", "queue", "text", "topic")

    def __init__(self, text: str, index: int, topic: str, queue: int, key: str, crc: int, delay_ms: int) -> None:
        self.text, self.index, self.topic, self.queue = text, index, topic, queue
        self.key, self.crc, self.delay_ms = key, crc, delay_ms
        #: Log offset, first and current; -1: the broker does not have it.
        self.first = self.now = -1


class _Transaction:
    __slots__ = (
        "checks", "decided_by", "group", "known", "messages", "plan", "position", "tried", "truth", "tx", "verdict",
    )  # fmt: skip

    def __init__(self, group: str, tx: str, messages: list[_Message], truth: Verdict) -> None:
        self.group, self.tx, self.messages, self.truth = group, tx, messages, truth
        self.verdict: Verdict | None = None
        self.position = -1
        self.decided_by = ""
        self.checks = 0
        #: Whether the sender knows how the local transaction ended.
        self.known = False
        #: Of each branch, whether it was tried; none: it is no global transaction.
        self.tried: list[bool] = []
        self.plan = "end"


class _Row:
    """A message in an outbox. ``state``: open, held, waiting, set aside, or over."""

    __slots__ = ("group", "message", "state")

    def __init__(self, group: str, message: _Message) -> None:
        self.group, self.message, self.state = group, message, "open"


class _Shown(NamedTuple):
    us: int
    message: _Message
    tx: str
    log_offset: int


@dataclass
class _Queue:
    shown: list[_Shown] = field(default_factory=list)
    first: int = 0


class World:
    def __init__(self, seed: int, options: Options) -> None:
        self.seed = seed
        self.o = options
        self.rng = random.Random(seed)
        self.events: list[AnyEvent] = []
        self.marks: list[Mark] = []
        self.log: list[Logged] = []
        self.queues: dict[tuple[str, int], _Queue] = {}
        self.log_end = ROOM
        self.log_start = 0
        self.restarts: list[tuple[int, int]] = []
        self.down: list[tuple[int, int]] = []
        self.undecided: dict[str, _Transaction] = {}
        self.keyed: dict[str, int] = {}
        #: Of the outbox, as they were written.
        self.rows: list[_Row] = []
        #: Findings of damage, by transaction; verdicts that are to be compared with their markers.
        self.damage: dict[str, Damage] = {}
        self.to_compare: list[_Transaction] = []
        #: Newest epoch of the coordinator of each group.
        self.epochs: dict[str, int] = {}
        self.serial = 0
        self.ops = 0
        self.now = 1_000_000
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.topics = [
            (f"Topic{number}", self.rng.randint(1, 4)) for number in range(options.topics or self.rng.randint(1, 3))
        ]
        self.groups = ["orders", "billing"]
        if options.policy_group:
            self.groups.append("policy")
        if options.dead_group:
            self.groups.append("dead")

    # --- time -----------------------------------------------------------------------------------------------------

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_us, self._count, action))

    def run(self) -> None:
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()

    def is_down(self, us: int) -> bool:
        return any(first <= us < then for first, then in self.down)

    # --- requests: sent now, perhaps executed by the broker a moment later, perhaps answered after that --------------

    def ask(
        self, by: str, make: Callable[[str], AnyEvent], do: Callable[[], dict[str, object]],
        then: Callable[[str, dict[str, object]], None], *, one_way: bool = False,
    ) -> None:  # fmt: skip
        rng = self.rng
        self.ops += 1
        op = f"o{self.ops}"
        self.events.append(self.coordinated(make(op)))
        asked_us = self.now
        way = rng.randint(5, 60)

        def arrives() -> None:
            if self.is_down(self.now) or rng.random() < self.o.lost_answers / 4:
                gone({})
                return
            answer = do()
            if one_way:
                then("ok", answer)
                return
            back = rng.randint(5, 60)
            # A response is lost in the network, or because the broker is killed before it sends it.
            if rng.random() < self.o.lost_answers or any(self.now < first <= self.now + back for first, _ in self.down):
                gone(answer)
                return
            self.later(back, lambda: answered(answer))

        def answered(answer: dict[str, object]) -> None:
            self.events.append(Answered(t_us=self.now, by=by, op=op, **answer))  # type: ignore[arg-type]
            then(str(answer["outcome"]), answer)

        def gone(answer: dict[str, object]) -> None:
            if one_way:
                then("unknown", answer)
                return

            def give_up() -> None:
                if rng.random() < 0.5:
                    self.events.append(Answered(t_us=self.now, by=by, op=op, outcome="unknown"))
                then("unknown", answer)

            self.later(rng.randint(200, 3000), give_up)

        assert asked_us == self.now
        self.later(way, arrives)

    # --- the broker -----------------------------------------------------------------------------------------------

    def is_coordinated(self, tx: str) -> bool:
        return not self.o.stock and tx != "" and crc32(tx.encode()) % 4 == 0

    def coordinated(self, event: AnyEvent) -> AnyEvent:
        """The request, as that of a coordinator if its transaction has one. Another process of it takes over now and then."""
        if not isinstance(event, HalfSent | EndAsked) or not self.is_coordinated(event.tx):
            return event
        if isinstance(event, EndAsked) and event.decided_by != "coordinator":
            return event
        group = event.group
        if self.ops % 10 == 0:
            self.epochs[group] = self.epochs.get(group, 0) + 1
            taken = EpochTaken(
                t_us=self.now, by="coordinator", group=group, coordinator="c", epoch=self.epochs[group], since_us=self.now
            )  # fmt: skip
            self.events.append(taken)
        return replace(event, coordinator="c", epoch=self.epochs.setdefault(group, 1))

    def record(self, **fields: object) -> int:
        offset = self.log_end
        self.log_end += ROOM * self.rng.randint(1, 4)
        self.marks.append(Mark(self.now, offset))
        if self.o.with_log:
            self.log.append(Logged(t_us=0, by="log", offset=offset, **fields))  # type: ignore[arg-type]
        return offset

    def store_half(self, transaction: _Transaction, message: _Message) -> dict[str, object]:
        if transaction.verdict is not None:
            return {
                "outcome": "settled",
                "verdict": transaction.verdict,
                "position": self.told(transaction.position),
                "code": 604,
            }
        if message.first < 0:
            message.first = message.now = self.record(
                kind="half", group=transaction.group, tx=transaction.tx, index=message.index, message=message.text,
                topic=message.topic, queue=message.queue, crc=message.crc, key=message.key,
            )  # fmt: skip
            self.undecided[transaction.tx] = transaction
        return {"outcome": "ok", "offset": message.first}

    def told(self, position: int) -> int:
        return position if self.o.with_log else -1

    def settle(self, transaction: _Transaction, verdict: Verdict, by: str) -> dict[str, object]:
        if transaction.verdict is None:
            halves = [message for message in transaction.messages if message.now >= 0]
            incomplete = verdict == COMMITTED and len(halves) < len(transaction.messages)
            if bool(halves) == (by == "fence") or incomplete:
                return {"outcome": "refused", "code": 604}
            transaction.verdict, transaction.decided_by = verdict, by
            if by in ("operator", "policy") and self.has_marker(transaction):
                self.to_compare.append(transaction)
            self.undecided.pop(transaction.tx, None)
            self.end_branches(transaction)
            if verdict == COMMITTED:
                self.commit(transaction, halves)
            else:
                transaction.position = self.record(
                    kind="rollback", group=transaction.group, tx=transaction.tx, decided_by=by
                )
        same = transaction.verdict == verdict
        return {
            "outcome": "ok" if same else "settled", "verdict": transaction.verdict, "code": 0 if same else 604,
            "position": self.told(transaction.position),
        }  # fmt: skip

    def commit(self, transaction: _Transaction, halves: list[_Message]) -> None:
        for message in halves:
            if self.rng.random() < 0.05:
                self.carry(transaction, message)
        shown = []
        for message in halves:
            queue = self.queues.setdefault((message.topic, message.queue), _Queue())
            if message.delay_ms:
                shown.append((message.topic, message.queue, -1, message.now))
                self.later(message.delay_ms * 1000, lambda m=message: self.show(m, transaction.tx))  # type: ignore[misc]
            else:
                shown.append((message.topic, message.queue, len(queue.shown), message.now))
                self.show(message, transaction.tx)
        transaction.position = self.record(
            kind="commit",
            group=transaction.group,
            tx=transaction.tx,
            decided_by=transaction.decided_by,
            shown=tuple(shown),
        )

    def show(self, message: _Message, tx: str) -> int:
        queue = self.queues.setdefault((message.topic, message.queue), _Queue())
        queue.shown.append(_Shown(self.now, message, tx, message.now))
        return len(queue.shown) - 1

    def carry(self, transaction: _Transaction, message: _Message) -> None:
        message.now = self.record(
            kind="copy", group=transaction.group, tx=transaction.tx, index=message.index, message=message.text,
            topic=message.topic, queue=message.queue, crc=message.crc, key=message.key,
        )  # fmt: skip

    def trim(self) -> None:
        """Trim the whole log so far; undecided halves are copied forward first."""
        start = self.log_end
        for transaction in self.undecided.values():
            for message in transaction.messages:
                if message.now >= 0:
                    self.carry(transaction, message)
        self.record(kind="trim", log_start=start)
        self.log = [record for record in self.log if record.offset >= start]
        self.log_start = start
        for queue in self.queues.values():
            while queue.first < len(queue.shown) and queue.shown[queue.first].log_offset < start:
                queue.first += 1

    def kill(self) -> None:
        down = self.rng.randint(500, 5_000)
        self.events.append(Fault(t_us=self.now, by="world", what="kill", whom="broker"))
        self.restarts.append((self.now, self.now + down))
        self.later(
            down,
            lambda: self.events.append(
                Started(
                    t_us=self.now, by="world", whom="broker", epoch=len(self.restarts) + 1, log_start=self.log_start
                )
            ),
        )

    # --- clients --------------------------------------------------------------------------------------------------

    def new_message(self, index: int, *, plain: bool = False) -> _Message:
        rng = self.rng
        self.serial += 1
        topic, queues = rng.choice(self.topics)
        key, queue = "", rng.randrange(queues)
        if rng.random() < self.o.keys:
            number = rng.randrange(20 if self.o.transactions < 1000 else 20_000)
            key, queue = f"k{number}", number % queues
        delay_ms = rng.randint(1, 30) if rng.random() < self.o.delayed else 0
        return _Message(
            f"{'P' if plain else 'M'}{self.serial:09}", index, topic, queue, key, rng.getrandbits(32) | 1, delay_ms
        )

    def start_transaction(self) -> None:
        rng = self.rng
        if rng.random() < self.o.plain:
            self.send_plain(self.new_message(0, plain=True), 0)
            return
        if self.o.outbox and rng.random() < self.o.outbox:
            messages = [self.new_message(index) for index in range(rng.randint(1, 3))]
            self.write_rows(rng.choice(("orders", "billing")), f"X{messages[0].text[1:]}", messages)
            return
        count = rng.randint(2, 4) if rng.random() < self.o.several else 1
        messages = [self.new_message(index) for index in range(count)]
        tx = messages[0].text if self.o.stock else f"T{messages[0].text[1:]}"
        group = rng.choice(self.groups)
        truth = ROLLED_BACK if rng.random() < self.o.rollbacks else COMMITTED
        transaction = _Transaction(group, tx, messages, truth)
        transaction.plan = "unsaid" if rng.random() < self.o.unsaid or group == "dead" else "end"
        if group != "dead" and not self.o.stock and rng.random() < 0.12:
            self.fence(group)
        self.send_halves(transaction, 0, 0)

    def fence(self, group: str) -> None:
        """A participant gives a global transaction up, before its initiator prepares it or after that."""
        message = self.new_message(0)
        transaction = _Transaction(group, f"T{message.text[1:]}", [message], ROLLED_BACK)
        transaction.known = True
        self.say(transaction, ROLLED_BACK, "fence", "participant", 0)
        self.later(self.rng.randint(1, 300), lambda: self.send_halves(transaction, 0, 0))

    def writer(self, transaction: _Transaction) -> str:
        return f"producer-{transaction.group}-{int(transaction.tx[1:]) % 3}"

    def send_plain(self, message: _Message, attempt: int) -> None:
        by = f"plain-{int(message.text[1:]) % 2}"

        def do() -> dict[str, object]:
            if message.first < 0:
                queue = self.queues.setdefault((message.topic, message.queue), _Queue())
                if message.delay_ms:
                    message.first = message.now = self.record(kind="other")
                    self.later(message.delay_ms * 1000, lambda: self.show_plain(message))
                else:
                    message.first = message.now = self.record(
                        kind="message", message=message.text, topic=message.topic, queue=message.queue,
                        queue_offset=len(queue.shown), crc=message.crc, key=message.key,
                    )  # fmt: skip
                    self.show_plain(message)
            if message.delay_ms:
                return {"outcome": "ok"}
            return {"outcome": "ok", "offset": message.first, "queue": message.queue, "queue_offset": message.index}

        def then(outcome: str, answer: dict[str, object]) -> None:
            if outcome == "unknown" and attempt < 3:
                self.send_plain(message, attempt + 1)

        self.ask(
            by,
            lambda op: PlainSent(
                t_us=self.now, by=by, op=op, message=message.text, topic=message.topic, queue=message.queue,
                crc=message.crc, key=message.key, delay_ms=message.delay_ms,
            ),
            do, then,
        )  # fmt: skip

    def show_plain(self, message: _Message) -> None:
        message.index = self.show(message, "")

    def send_halves(self, transaction: _Transaction, index: int, attempt: int) -> None:
        by = self.writer(transaction)
        message = transaction.messages[index]

        def then(outcome: str, answer: dict[str, object]) -> None:
            if outcome == "unknown" and self.o.outbox and transaction.group != "dead" and self.rng.random() < 0.5:
                transaction.truth = ROLLED_BACK
                transaction.known = True
                self.write_rows(transaction.group, transaction.tx, transaction.messages)
            elif outcome == "unknown" and attempt < 3:
                self.send_halves(transaction, index, attempt + 1)
            elif outcome == "ok" and index + 1 < len(transaction.messages):
                self.send_halves(transaction, index + 1, 0)
            elif outcome == "ok":
                self.later(self.rng.randint(5, 500), lambda: self.local(transaction))
            else:  # cancelled, or settled by a check or an operator meanwhile: nothing to do
                transaction.truth = ROLLED_BACK
                transaction.known = True
                self.write_local(transaction)

        self.ask(
            by,
            lambda op: HalfSent(
                t_us=self.now, by=by, op=op, group=transaction.group, tx=transaction.tx, index=index,
                message=message.text, topic=message.topic, queue=message.queue, crc=message.crc, key=message.key,
                delay_ms=message.delay_ms,
            ),
            lambda: self.store_half(transaction, message), then,
        )  # fmt: skip

    def has_marker(self, transaction: _Transaction) -> bool:
        return not self.o.stock and transaction.group != "dead" and crc32(f"marker {transaction.tx}".encode()) % 8 > 0

    def compare(self) -> None:
        """Report what the markers say of verdicts of others. Now and then somebody lists what was found, or forgets it."""
        for transaction in [one for one in self.to_compare if one.known]:
            self.report_outcome(transaction)
        self.list_damage()
        for tx, found in list(self.damage.items()):
            if self.rng.random() < 0.05:
                self.forget(tx, found)

    def list_damage(self) -> None:
        if self.events and not self.o.stock:
            listed = DamageListed(t_us=self.now, by="operator", findings=tuple(self.damage.values()), since_us=self.now)
            self.events.append(listed)

    def report_outcome(self, transaction: _Transaction) -> None:
        def do() -> dict[str, object]:
            if transaction in self.to_compare:
                self.to_compare.remove(transaction)
                assert transaction.verdict is not None
                if transaction.verdict != transaction.truth:
                    self.damage[transaction.tx] = Damage(
                        group=transaction.group, tx=transaction.tx, verdict=transaction.verdict, local=transaction.truth,
                        decided_by=transaction.decided_by,
                    )  # fmt: skip
            return {"outcome": "ok", "verdict": transaction.verdict}

        self.ask(
            "markers",
            lambda op: OutcomeReported(
                t_us=self.now, by="markers", op=op, group=transaction.group, tx=transaction.tx, outcome=transaction.truth,
                marker=True,
            ),
            do, lambda outcome, answer: None,
        )  # fmt: skip

    def forget(self, tx: str, found: Damage) -> None:
        self.ask(
            "operator",
            lambda op: DamageForgotten(t_us=self.now, by="operator", op=op, group=found.group, tx=tx),
            lambda: {"outcome": "ok" if self.damage.pop(tx, None) else "refused"}, lambda outcome, answer: None,
        )  # fmt: skip

    def write_local(self, transaction: _Transaction) -> None:
        if self.rng.random() < 0.9:
            listed = tuple(one.text for one in transaction.messages) if self.rng.random() < 0.3 else ()
            self.events.append(
                Local(
                    t_us=self.now,
                    by="database",
                    group=transaction.group,
                    tx=transaction.tx,
                    outcome=transaction.truth,
                    messages=listed if transaction.truth == COMMITTED else (),
                    marker=self.has_marker(transaction),
                    **self.handled_by(transaction),
                )
            )

    def handled_by(self, transaction: _Transaction) -> dict[str, str]:
        """The message that the transaction handled, if a handler that sends began it."""
        begun_by = random.Random(f"handler of {transaction.group} {transaction.tx}")
        if begun_by.random() > 0.2:
            return {}
        return {"handled": f"handled by {transaction.tx}", "consumer": begun_by.choice(("stock", "bank"))}

    def write_branch(self, transaction: _Transaction, branch: int, call: str) -> None:
        """What a participant of Try/Confirm/Cancel did."""
        self.events.append(
            BranchWritten(
                t_us=self.now, by="stock", group=transaction.group, tx=transaction.tx, branch=str(branch),
                call=call,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    def try_branches(self, transaction: _Transaction) -> None:
        """If it is a global transaction. Without all tries the initiator does not commit; but a person may."""
        rng = random.Random(f"branches of {transaction.group} {transaction.tx}")
        if rng.random() < 0.1:
            count = rng.choice((1, 2, 3))
            transaction.tried = [transaction.truth == COMMITTED or rng.random() < 0.7 for _ in range(count)]
        for branch, tried in enumerate(transaction.tried):
            if tried:
                self.write_branch(transaction, branch, "try")
        if transaction.verdict is not None:
            self.end_branches(transaction)

    def end_branches(self, transaction: _Transaction) -> None:
        """By the verdict, whoever gave it."""
        for branch, tried in enumerate(transaction.tried):
            if transaction.verdict == ROLLED_BACK:
                self.write_branch(transaction, branch, "cancel" if tried else "empty")
            elif tried:
                self.write_branch(transaction, branch, "confirm")

    def local(self, transaction: _Transaction) -> None:
        transaction.known = True
        self.try_branches(transaction)
        self.write_local(transaction)
        if self.rng.random() < self.o.operators * 1.3 and transaction.group != "dead":
            verdict = self.rng.choice((COMMITTED, ROLLED_BACK))
            self.say(transaction, verdict, "operator", "operator", 0)
        if transaction.plan == "end":
            self.say(transaction, transaction.truth, "application", self.writer(transaction), 0)

    def say(self, transaction: _Transaction, verdict: Verdict, decided_by: str, by: str, attempt: int) -> None:
        if decided_by not in ("operator", "fence") and self.is_coordinated(transaction.tx):
            decided_by = "coordinator"

        def then(outcome: str, answer: dict[str, object]) -> None:
            if outcome == "unknown" and attempt < 2 and not self.o.stock:
                self.say(transaction, verdict, decided_by, by, attempt + 1)

        self.ask(
            by,
            lambda op: EndAsked(
                t_us=self.now, by=by, op=op, group=transaction.group, tx=transaction.tx, verdict=verdict,
                decided_by=decided_by,  # type: ignore[arg-type]
            ),
            lambda: self.settle(transaction, verdict, decided_by), then, one_way=self.o.stock,
        )  # fmt: skip

    def check(self) -> None:
        """Check every undecided transaction; a producer that knows the outcome answers."""
        for transaction in list(self.undecided.values()):
            if transaction.group == "dead" or self.is_down(self.now):
                continue
            transaction.checks += 1
            by = f"producer-{transaction.group}-{self.rng.randrange(3)}"
            self.events.append(
                CheckReceived(
                    t_us=self.now, by=by, group=transaction.group, tx=transaction.tx, times=transaction.checks
                )
            )
            if transaction.group == "policy" and transaction.checks > 1 and transaction.tx in self.undecided:
                self.asked_by_policy(transaction)
                self.settle(transaction, ROLLED_BACK, "policy")
            elif not transaction.known or self.rng.random() < 0.3:
                self.events.append(CheckUnanswered(t_us=self.now, by=by, group=transaction.group, tx=transaction.tx))
            else:
                self.say(transaction, transaction.truth, self.rng.choice(("check", "marker")), by, 0)

    def asked_by_policy(self, transaction: _Transaction) -> None:
        """Of what a policy decides the recording says so."""
        if not self.o.stock:
            self.ops += 1
            asked = EndAsked(
                t_us=self.now, by="world", op=f"o{self.ops}", group=transaction.group, tx=transaction.tx, verdict=ROLLED_BACK,
                decided_by="policy",
            )  # fmt: skip
            self.events.append(asked)

    # --- the outbox and its relay ---------------------------------------------------------------------------------

    def write_rows(self, group: str, tx: str, messages: list[_Message]) -> None:
        """In a transaction that ends a moment later."""
        hold = self.rng.random() < 0.2
        rows = [_Row(group, copy.copy(message)) for message in messages]
        for message in messages:
            self.events.append(
                OutboxWritten(
                    t_us=self.now, by=f"shop-{group}", group=group, tx=tx, message=message.text, topic=message.topic,
                    crc=message.crc, key=message.key, delay_ms=message.delay_ms, hold=hold,
                )
            )  # fmt: skip
        self.rows += rows
        self.later(self.rng.randint(5, 500), lambda: self.end_rows(group, tx, rows, hold=hold))

    def end_rows(self, group: str, tx: str, rows: list[_Row], *, hold: bool) -> None:
        rng = self.rng
        committed = rng.random() >= self.o.rollbacks
        # A rollback to a savepoint takes a message with it.
        kept = [row for row in rows if row is rows[0] or rng.random() < 0.9] if committed else []
        for row in rows:
            row.state = "over" if row not in kept else "held" if hold else "waiting"
        if rng.random() < 0.9:
            self.events.append(
                Local(
                    t_us=self.now, by=f"shop-{group}", group=group, tx=tx, outcome=COMMITTED if kept else ROLLED_BACK,
                    messages=tuple(row.message.text for row in kept),
                )
            )  # fmt: skip
        for row in kept:
            if hold:
                verdict = rng.choice((COMMITTED, COMMITTED, ROLLED_BACK))
                self.later(
                    rng.randint(5, 500), lambda row=row, verdict=verdict: self.decide(row, verdict, "application")
                )  # type: ignore[misc]
            elif row.message.delay_ms:
                row.state = "over"
                self.later(row.message.delay_ms * 1000, lambda row=row: self.publish(row))  # type: ignore[misc]
        self.later(rng.randint(5, 500), self.relay)

    def decide(self, row: _Row, verdict: Verdict, decided_by: str) -> None:
        """Confirm or withdraw what is held, or skip what is set aside."""

        def do() -> dict[str, object]:
            if row.state != ("held" if decided_by == "application" else "set aside"):
                return {"outcome": "refused"}
            row.state = "waiting" if verdict == COMMITTED else "over"
            self.later(5, self.relay)
            return {"outcome": "ok"}

        self.ask(
            f"shop-{row.group}",
            lambda op: EndAsked(
                t_us=self.now, by=f"shop-{row.group}", op=op, group=row.group, tx="", message=row.message.text,
                verdict=verdict, decided_by=decided_by,  # type: ignore[arg-type]
            ),
            do, lambda outcome, answer: None,
        )  # fmt: skip

    def relay(self) -> None:
        """Publish what waits, in the order of the rows, but nothing behind what is set aside."""
        if self.is_down(self.now):
            self.later(1_000, self.relay)
            return
        stopped: set[tuple[str, str]] = set()
        for row in self.rows:
            lane = (row.group, row.message.key or row.message.text)
            if row.state == "waiting" and lane not in stopped:
                if self.rng.random() < 0.05:
                    row.state = "set aside"
                    if self.rng.random() < 0.5:
                        self.later(100, lambda row=row: self.decide(row, ROLLED_BACK, "operator"))  # type: ignore[misc]
                else:
                    row.state = "over"
                    self.publish(row)
            if row.state == "set aside":
                stopped.add(lane)
        self.rows = [row for row in self.rows if row.state != "over"]

    def publish(self, row: _Row) -> None:
        """In a batch of its own. A killed relay publishes it once more, or rolls its first batch back where the target tells it to."""
        if self.rng.random() < 0.1:
            if row.group == "billing":
                self.later(self.rng.choice((0, 500)), lambda: self.publish_in(row.message, COMMITTED))
            else:
                self.publish_in(row.message, ROLLED_BACK)
        self.publish_in(row.message, COMMITTED)

    def publish_in(self, message: _Message, verdict: Verdict) -> None:
        self.serial += 1
        batch = f"B{self.serial:09}"
        half = self.record(
            kind="half", group="relay", tx=batch, message=message.text, topic=message.topic, queue=message.queue,
            crc=message.crc, key=message.key,
        )  # fmt: skip
        if verdict == ROLLED_BACK:
            self.record(kind="rollback", group="relay", tx=batch, decided_by="application")
            return
        published = copy.copy(message)
        published.now = half
        shown = ((message.topic, message.queue, self.show(published, batch), half),)
        self.record(kind="commit", group="relay", tx=batch, decided_by="application", shown=shown)

    # --- readers --------------------------------------------------------------------------------------------------

    def read(self, reader: str, at: dict[tuple[str, int], int], *, again: bool) -> None:
        """Receive new messages in order, some of them twice."""
        for (topic, number), queue in self.queues.items():
            offset = max(at.get((topic, number), 0), queue.first)
            while offset < len(queue.shown):
                self.see(reader, topic, number, offset, queue.shown[offset])
                if again and self.rng.random() < self.o.again:
                    self.see(reader, topic, number, offset, queue.shown[offset])
                    self.see(reader, f"%RETRY%{reader}", 0, self.serial, queue.shown[offset])
                offset += 1
            at[topic, number] = offset

    def see(self, reader: str, topic: str, number: int, offset: int, shown: _Shown) -> None:
        message = shown.message
        self.events.append(
            Seen(
                t_us=self.now, by=reader, reader=reader, message=message.text, topic=topic, queue=number,
                queue_offset=offset, tx="" if self.o.stock else shown.tx, index=message.index if shown.tx else 0,
                offset=shown.log_offset, store_time_ms=shown.us // 1000, crc=message.crc, key=message.key,
            )
        )  # fmt: skip

    # --- the whole history ----------------------------------------------------------------------------------------

    def live(self) -> History:
        o, rng = self.o, self.rng
        system = "rocketmq 5.5.0" if o.stock else "halfmq 0.1.0"
        length = max(o.transactions * o.pace_us, 2_000)
        start = self.now
        for number in range(o.transactions):
            self.later(number * o.pace_us + rng.randint(0, o.pace_us), self.start_transaction)
        for _ in range(o.kills):
            at = rng.randrange(length)
            self.later(at, self.kill)
            self.down.append((start + at, start + at + 1_500))
        for _ in range(o.trims):
            self.later(rng.randrange(length), self.trim)
        positions: list[dict[tuple[str, int], int]] = [{} for _ in range(o.readers)]
        turns = max(5, o.transactions // 20)
        for number, at in enumerate(positions):
            for turn in range(turns):
                self.later(
                    turn * length // turns + rng.randint(0, 300),
                    lambda n=number, at=at: self.read(f"reader-{n}", at, again=True),  # type: ignore[misc]
                )
        for turn in range(max(3, o.transactions // 200)):
            self.later(turn * 10_000 + rng.randint(0, 5_000), self.check)
            self.later(turn * 10_000 + rng.randint(5_000, 9_000), self.compare)
        self.run()
        # Faults have ended. Check until everybody has answered.
        o.lost_answers = 0.0
        self.down.clear()
        for _ in range(200):
            if not any(one.group != "dead" for one in self.undecided.values()):
                break
            self.now += 10_000
            self.check()
            self.run()
        self.compare()
        self.run()
        self.relay()
        self.run()
        self.now += 1_000
        self.events.append(
            Settled(
                t_us=self.now, by="world", unresolved_groups=("dead",) if o.dead_group else (),
                set_aside=tuple(row.message.text for row in self.rows if row.state == "set aside"),
            )
        )  # fmt: skip
        settled_us = self.now
        self.list_damage()
        for number, at in enumerate(positions):
            self.now += 100
            reader = f"reader-{number}"
            self.read(reader, at, again=False)
            for (topic, queue_number), queue in sorted(self.queues.items()):
                # It has received what it read before a trim, but not what was trimmed before it was read.
                self.events.append(
                    QueueRead(
                        t_us=self.now + 1, by=reader, reader=reader, topic=topic, queue=queue_number, first=queue.first,
                        end=len(queue.shown),
                    )
                )  # fmt: skip
        self.now += 1_000
        for record in self.log:
            self.events.append(msgspec.structs.replace(record, t_us=self.now))
        writers = dict.fromkeys(event.by for event in self.events)
        policy = ("policy",) if o.policy_group else ()
        began: list[AnyEvent] = [
            FileStarted(
                t_us=start - 1,
                by=by,
                system=system,
                policy_groups=policy,
                atomic=not o.stock,
                at_least_once=("billing",) if o.outbox else (),
                relay_groups=("relay",) if o.outbox else (),
            )
            for by in writers
        ]
        return History(
            o, began + sorted(self.events, key=lambda event: event.t_us), self.marks, sorted(self.restarts), settled_us,
            self.now,
        )  # fmt: skip


class Tiled(NamedTuple):
    """A long history in files: copies of ``tile`` in sequence, each with its own names, places and times."""

    paths: list[Path]
    events: int
    tile: History
    count: int
    #: Time from one tile to the next.
    us: int
    offset: int

    @property
    def end_us(self) -> int:
        return self.tile.end_us + (self.count - 1) * self.us

    def marks(self, number: int) -> list[Mark]:
        return [Mark(mark.us + number * self.us, mark.offset + number * self.offset) for mark in self.tile.marks]

    def restarts(self, number: int) -> list[tuple[int, int]]:
        return [(down + number * self.us, up + number * self.us) for down, up in self.tile.restarts]


def tiled(tile: History, count: int, directory: Path) -> Tiled:
    """Much cheaper than generating a history of that length, with the same result as if the model had continued.

    Between tiles an operator lets the broker forget what was found: the lists of a tile name its own findings only.
    """
    directory.mkdir(parents=True, exist_ok=True)
    us = tile.end_us - tile.events[0].t_us + 1_000
    offset = max(mark.offset for mark in tile.marks) + 100 * ROOM
    ends = {(one.topic, one.queue): one.end for one in tile.events if isinstance(one, QueueRead)}
    forgets = _forgets(tile)
    encode = msgspec.json.Encoder().encode_lines
    events = 0
    paths = {by: directory / f"{by}.jsonl" for by in tile.files()}
    files = {by: path.open("wb") for by, path in paths.items()}
    try:
        for number in range(count):
            last = number == count - 1
            for by, own in tile.files().items():
                own += [] if last else [event for event in forgets if event.by == by]
                shifted = [
                    one for event in own if (one := _shifted(event, number, us, offset, ends, last=last)) is not None
                ]
                events += len(shifted)
                files[by].write(encode(shifted))
    finally:
        for file in files.values():
            file.close()
    return Tiled(list(paths.values()), events, tile, count, us, offset)


def _forgets(tile: History) -> list[AnyEvent]:
    """Requests to forget each finding of the last list, after everything else, and the responses."""
    *_, last = [DamageListed(t_us=0, by=""), *(one for one in tile.events if isinstance(one, DamageListed))]
    events: list[AnyEvent] = []
    for finding in last.findings:
        op = f"forgets {finding.tx}"
        events += (
            DamageForgotten(t_us=tile.end_us + 1, by=last.by, op=op, group=finding.group, tx=finding.tx),
            Answered(t_us=tile.end_us + 2, by=last.by, op=op, outcome="ok"),
        )
    return events


def _shifted(
    event: AnyEvent, number: int, us: int, offset: int, ends: dict[tuple[str, int], int], *, last: bool
) -> AnyEvent | None:
    """``event`` in tile ``number``; None: it is only in the first or only in the last tile."""
    kind = type(event)
    later: dict[str, object] = {"t_us": event.t_us + number * us}
    if kind is FileStarted and number:
        return None
    if kind in (Settled, QueueRead) and not last:
        return None
    mark = f"{number}."
    if isinstance(event, HalfSent | PlainSent | EndAsked | Answered | OutcomeReported | DamageForgotten):
        later["op"] = mark + event.op
    if isinstance(event, HalfSent | EndAsked | EpochTaken) and event.epoch:
        later["epoch"] = event.epoch + number * 1_000_000
    if isinstance(event, EpochTaken):
        later["since_us"] = event.since_us + number * us
    if tx := getattr(event, "tx", ""):
        later["tx"] = mark + tx
    if isinstance(event, HalfSent | PlainSent | Logged | Seen) and event.message:
        later["message"] = mark + event.message
    if isinstance(event, Local):
        later["messages"] = tuple(mark + one for one in event.messages)
        later["handled"] = event.handled and mark + event.handled
    if isinstance(event, DamageListed):
        later["since_us"] = event.since_us + number * us
        later["findings"] = tuple(msgspec.structs.replace(one, tx=mark + one.tx) for one in event.findings)
    if isinstance(event, Answered | Logged | Seen) and event.offset >= 0:
        later["offset"] = event.offset + number * offset
    if isinstance(event, Answered):
        if event.position >= 0:
            later["position"] = event.position + number * offset
        if event.queue_offset >= 0:
            # Plain messages: in the only topic of the tile.
            later["queue_offset"] = event.queue_offset + number * _only(ends, event.queue)
    elif isinstance(event, Logged):
        if event.queue_offset >= 0:
            later["queue_offset"] = event.queue_offset + number * ends[event.topic, event.queue]
        later["shown"] = tuple(
            (topic, queue, at if at < 0 else at + number * ends[topic, queue], half + number * offset)
            for topic, queue, at, half in event.shown
        )
        later["t_us"] = event.t_us + number * us
    elif isinstance(event, Seen):
        if (event.topic, event.queue) in ends:
            later["queue_offset"] = event.queue_offset + number * ends[event.topic, event.queue]
        later["store_time_ms"] = event.store_time_ms + number * us // 1_000
    elif isinstance(event, QueueRead):
        later["end"] = event.end * (number + 1)
    return msgspec.structs.replace(event, **later)


def _only(ends: dict[tuple[str, int], int], queue: int) -> int:
    (end,) = [end for (_, number), end in ends.items() if number == queue]
    return end


def made(seed: int, options: Options | None = None) -> History:
    """The history of this seed; without ``options``, with random ones."""
    return World(seed, drawn(seed) if options is None else options).live()


def numbered(events: Sequence[AnyEvent]) -> str:
    """The events as lines, for a failing test."""
    encode = msgspec.json.Encoder().encode
    return "\n".join(f"{number:>6} {encode(event).decode()}" for number, event in enumerate(events, 1))
