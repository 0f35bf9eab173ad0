"""Random lives of the core, and what redo makes of their logs.

Each seed lives some hundreds of commands on 64 KiB segments: transactions of one and several messages, messages sent
again, delays, retries, checks, offsets, topics, rolls, carry-forwards, trims, full disks. At random points the durable
digest of the live state must equal that of a redo of what the log still has, and of a snapshot with the log behind it.
Meanwhile a plain oracle watches the records: one verdict each, nothing shown twice, rolled-back halves never.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.core_log import (
    PEER,
    CoreLog,
    batch_of,
    changed,
    consumer,
    end,
    half,
    half_batch,
    message,
    part,
    producer,
    winner,
)
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq.core.commands import (
    Actor,
    CheckNotSent,
    CheckNow,
    CommitOffset,
    Compare,
    CopyForward,
    DecideBatch,
    DeleteGroup,
    DeleteTopic,
    EnsureGroup,
    FenceTransaction,
    FindDecision,
    ForgetCoordinator,
    ForgetDamage,
    ForgetQuery,
    LockQueues,
    NoteAction,
    PrepareBatch,
    RemoveUser,
    RequestedVerdict,
    ResolveTransaction,
    SendBack,
    SetGroup,
    SetProducer,
    SetSetting,
    SetTopic,
    SetUser,
    TakeEpoch,
    TrimLog,
    UnlockQueues,
    UnsetSetting,
)
from halfmq.core.decision import (
    Asked,
    BatchDecided,
    ComparisonMade,
    ConsumerGroupDeleted,
    CoordinatorForgotten,
    DecisionFound,
    Done,
    EpochTaken,
    Fenced,
    PolicyActed,
    ProducerSettingsStored,
    Refused,
    SendCheck,
    Sent,
    Settled,
    UserIsSet,
    UserRemoved,
    Why,
)
from halfmq.core.holds import holding, unread_between
from halfmq.core.retention import tied_start
from halfmq.core.session import (
    CheckDelivered,
    ConnectionClosed,
    DiskSpace,
    LogOffsetsNow,
    PollEnded,
    Polling,
    Published,
)
from halfmq.core.state import State
from halfmq.core.transaction.queries import key_of
from halfmq.model.coordinator import Coordinator
from halfmq.model.half_batch import delayed_items
from halfmq.model.ids import ANY_HALF
from halfmq.model.properties import encode
from halfmq.model.query_batch import QueryBatch, of_tx_id
from halfmq.model.records import (
    Committed,
    Copied,
    CopiedDelayed,
    CopiedHalfBatch,
    Decided,
    DecidedBy,
    DelayedRecord,
    Half,
    HalfBatch,
    HalfRecord,
    MessageRecord,
    OperatorAction,
    Parked,
    ParkedBecause,
    Released,
    Restored,
    RolledBack,
)
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings
from halfmq.model.stored_message import StoredMessage
from halfmq.model.users import User, UserLimits, UserSecret

TOPICS = ("orders", "loyalty", "audit")
GROUPS = ("PG", "PG2")
COMMANDS = 350
#: From one snapshot to the next: few enough that most have their log still behind them.
SNAPSHOT_COMMANDS = 70


class QueryLife:
    """What a query knows of itself."""

    def __init__(self, name: str, group: str, topic: str = "", stream: str = "") -> None:
        self.name = name
        self.group = group
        self.topic = topic
        self.stream = stream
        self.runs = 1
        self.batch = 0
        self.prepared: dict[str, list[PrepareBatch]] = {}
        #: Batch -> digest, position.
        self.decided: dict[int, tuple[bytes, int]] = {}
        self.shown = 0

    @property
    def next_batch(self) -> QueryBatch:
        return QueryBatch(self.name, self.batch, f"{self.topic[:1].strip('*')}r{self.runs}", self.topic, self.stream)

    @property
    def last_batch(self) -> int:
        return max(self.decided, default=-1)

    def begin_run(self) -> None:
        self.runs += 1
        self.prepared.clear()


class Life:
    """One seed: the log, the random choices, and what the oracle knows."""

    def __init__(self, seed: int, make_log: type[CoreLog] = CoreLog) -> None:
        self.rng = random.Random(seed)
        self.log = make_log(
            BrokerSettings(
                segment_bytes=65_536,
                dedup_window_ms=self.rng.choice([2_000, 20_000, 120_000]),
                dedup_ids_max=self.rng.choice([10, 100_000]),
                check_interval_ms=self.rng.choice([500, 5_000]),
                checks_in_flight_max=self.rng.choice([2, 256]),
                undecided_max=60,
            ),
            batch_commands=self.rng.choice([1, 3, 10]),
        )
        self.log.begin_epoch()
        self.count = 0
        #: (group, id) -> first answers by index, and how many halves it shall have.
        self.open: dict[tuple[str, str], tuple[dict[int, Sent], int]] = {}
        self.verdicts: dict[tuple[str, str], tuple[bool, int]] = {}
        self.plain: list[Any] = []
        #: Queries whose last batch is decided. The broker may have forgotten them.
        self.over: list[QueryLife] = []
        lives = (
            QueryLife("q1", "PG"),
            QueryLife("q2", "SPARK", "*"),
            QueryLife("q2", "PG", "stock", "s-2"),
        )
        self.queries = {(life.name, life.topic): life for life in lives}
        #: Newest epoch of each coordinator, by group and name; and its transactions without a verdict.
        self.epochs: dict[tuple[str, str], int] = {}
        self.coordinated: dict[str, tuple[str, str]] = {}
        #: Who sends, and settles, from now on; "" until there are users.
        self.user = ""
        #: Transactions that were undecided when the log became a restored store.
        self.restored: set[tuple[str, str]] = set()
        self.seen: Counter[str] = Counter()

    def one_of(self, items: Any) -> Any:
        return self.rng.choice(list(items))

    def options(self) -> dict[str, Any]:
        extra = self.one_of(
            [
                {},
                {},
                {},
                {"DELAY": "2"},
                {"TIMER_DELAY_MS": "700"},
                {"TAGS": "TagA"},
                {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"},
            ]
        )
        body = bytes([self.rng.randrange(256)]) * self.one_of([1, 10, 500, 3_000])
        if self.count % 3 == 0:  # no die is thrown for this
            extra = {**extra, "HMQ_TX_MARKER": "9.1"}
        return {
            "topic": self.one_of(TOPICS),
            "queue": self.one_of([-1, 0, 1]),
            "body": body,
            "user": self.user,
            **extra,
        }

    def users(self) -> None:
        """Users are made, changed and removed. A transaction whose user changes in the middle gets no more halves. No die is thrown."""
        state, number = self.log.state, self.log.state.log_end // 8
        name = ("root", "shop", "audit")[number % 3]
        user = User(
            (UserSecret(b"s" * (number % 20), number % 4 and self.log.now_ms + number % 900),), "",
            ("administer:broker",) if name == "root" or number % 5 == 0 else ("send:topic:*",),
            UserLimits(undecided=number % 7 * 3),
        )  # fmt: skip
        if name in state.users and number % 2:
            reply = self.log.do(RemoveUser(name, self.by()))
        else:
            reply = self.log.do(SetUser(name, user, name not in state.users, self.by()))
        self.seen[f"user {type(reply).__name__}"] += 1
        assert isinstance(reply, UserIsSet | UserRemoved) or reply.why is Why.NOT_NOW
        if state.users:
            assert any(one.is_administrator for one in state.users.values())
            self.user = list(state.users)[number % len(state.users)]

    def settings(self) -> None:
        """A setting is changed, or has its configured value again; see ``restart_otherwise``. No die is thrown."""
        state, number = self.log.state, self.log.state.log_end // 8
        values = {
            "check_interval_ms": (300, 900, 1 << 40), "check_interval_max_ms": (100, 60_000), "checks_in_flight_max": (2, 3, 200),
            "undecided_max": (40, 80), "undecided_bytes_max": (1 << 20, 1 << 30), "undecided_total_max": (500, 900),
            "auto_create_groups": (True,), "retention_hours": (0.5, 24.0), "check_answer_ms": (700, 1_500),
        }  # fmt: skip
        name = list(values)[number % len(values)]
        by = Actor("ada", "a test", "10.0.0.1:5")
        if name in state.recorded_settings and number % 2:
            reply = self.log.do(UnsetSetting(name, by))
        else:
            value = values[name][number // 7 % len(values[name])]
            reply = self.log.do(SetSetting(name, value, getattr(self.log.settings, name, 72.0), by))
        self.seen[f"setting {type(reply).__name__}"] += 1
        assert reply == Done() or reply.why is Why.INVALID_PARAMETER

    # --- steps ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.count += 1
        group = self.one_of(GROUPS)
        tx_id = f"T{self.count}"
        parts = self.one_of([1, 1, 1, 2, 3, 5])
        answers: dict[int, Sent] = {}
        order = list(range(parts))
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        for index in order if self.rng.random() < 0.9 else order[:-1]:
            count = parts if index == parts - 1 else 0
            command = (
                half(tx_id, group=group, **self.options())
                if parts == 1
                else part(tx_id, index, count, group=group, **self.options())
            )
            reply = self.log.do(command)
            if isinstance(reply, Sent):
                answers[index] = reply
                if self.rng.random() < 0.1:
                    assert self.log.do(changed(command, connection=9)) == reply
                    self.seen["half sent again"] += 1
            if self.rng.random() < 0.1:
                self.wait()
        if answers:
            self.open[group, tx_id] = (answers, parts)

    def by(self) -> Actor | None:
        """Now and then an operator stands behind it. No die of the life is thrown for this."""
        return (
            Actor("ann", "r" * (self.log.state.log_end % 400), "10.0.0.1:1")
            if self.log.state.log_end % 3 == 0
            else None
        )

    def settle(self) -> None:
        if not self.open:
            return
        group, tx_id = self.one_of(self.open)
        answers, parts = self.open[group, tx_id]
        wanted = self.one_of(
            [RequestedVerdict.COMMIT, RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK, RequestedVerdict.UNKNOWN]
        )
        by_operator = self.rng.random() < 0.1 and wanted != RequestedVerdict.UNKNOWN
        first = self.one_of(answers.values())
        command: Any = (
            ResolveTransaction(group, tx_id, wanted, "ops") if by_operator else end(tx_id, first, wanted, group=group)
        )
        command = changed(command, user=self.user)
        reply = self.log.do(command)
        known = self.verdicts.get((group, tx_id))
        if known is None and isinstance(reply, Settled):
            assert not reply.repeated
            assert reply.committed == (wanted == RequestedVerdict.COMMIT)
            self.verdicts[group, tx_id] = (reply.committed, reply.position)
            self.seen["settled"] += 1
        elif known is None and isinstance(reply, Refused):
            if reply.why is Why.AFTER_RESTORE:
                assert (group, tx_id) in self.restored
                assert (wanted, by_operator) == (RequestedVerdict.ROLLBACK, False)
                self.seen["rollback after a restore"] += 1
            else:
                assert reply.why is Why.INCOMPLETE
                assert len(answers) < parts
                self.seen["incomplete"] += 1
        elif known is not None and wanted != RequestedVerdict.UNKNOWN:
            committed, position = known
            if isinstance(reply, Settled):
                assert (reply.repeated, reply.committed, reply.position) == (True, committed, position)
                self.seen["repeated"] += 1
            else:
                assert isinstance(reply, Refused)
                if reply.why is Why.VERDICT_CONFLICT:
                    assert (reply.standing, reply.position) == ("COMMITTED" if committed else "ROLLED_BACK", position)
                    assert (wanted == RequestedVerdict.COMMIT) != committed
                    self.seen["conflict"] += 1
                else:
                    assert reply.why is Why.NOT_FOUND  # beyond the window; the table row would know
                    self.seen["past the window"] += 1
        self.report_outcome()
        self.fence(group)

    def fence(self, group: str) -> None:
        """A participant cancels before its initiator has prepared, which then cannot. No die is thrown."""
        log_end = self.log.state.log_end
        if log_end // 8 % 9:
            return
        tx_id = f"F{log_end}"
        reply = self.log.do(FenceTransaction(1, group, tx_id, self.log.state.log_start, log_end))
        if not isinstance(reply, Fenced):
            assert isinstance(reply, Refused)
            assert reply.why in (Why.STORE_FULL, Why.LIMIT_REACHED)
            return
        late = self.log.do(half(tx_id, group=group))
        assert isinstance(late, Refused)
        assert (late.why, late.standing, late.position) == (Why.ALREADY_SETTLED, reply.standing, reply.position)
        self.seen["fenced"] += 1

    def report_outcome(self) -> None:
        """Somebody reads the marker of a transaction that another one settled, or an operator has seen what came of it."""
        comparisons, number = list(self.log.state.comparisons.values()), self.log.state.log_end // 8
        if not comparisons:
            return
        one = comparisons[number % len(comparisons)]
        if one.is_finding and number % 5:
            return
        if one.is_finding:
            reply = self.log.do(ForgetDamage(one.group, one.tx_id, Actor("ada", "seen", "10.0.0.1:5")))
            self.seen["finding forgotten"] += 1
        else:
            agrees = number % 2 == 0
            reply = self.log.do(Compare(one.group, one.tx_id, one.committed == agrees, "markers", is_marker=True))
            assert (reply.agrees, reply.committed) == (agrees, one.committed)
            self.seen["comparison agrees" if agrees else "finding"] += 1
        assert isinstance(reply, ComparisonMade)

    def coordinate(self) -> None:
        """A process of a coordinator takes over, prepares or settles; what the one before it sends is refused."""
        of = group, name = self.one_of(GROUPS), self.one_of(["c1", "c2"])
        if of not in self.epochs or self.rng.random() < 0.2:
            self.count += 1
            reply = self.log.do(TakeEpoch(group, name, f"process {self.count}"))
            if not isinstance(reply, EpochTaken):
                return
            assert reply.epoch > max(self.epochs.values(), default=0)
            self.epochs[of] = reply.epoch
            self.seen["epoch taken"] += 1
        of_this = [tx_id for tx_id, whose in self.coordinated.items() if whose == of]
        if of_this and self.rng.random() < 0.6:
            self.settle_for(of, self.one_of(of_this))
        elif not of_this and self.rng.random() < 0.2:
            gone = self.log.do(ForgetCoordinator(group, name, Actor("ada", "gone", "10.0.0.1:5")))
            assert isinstance(gone, CoordinatorForgotten)
            self.seen["coordinator forgotten"] += 1
            del self.epochs[of]
        else:
            self.count += 1
            tx_id = f"C{self.count}"
            for epoch in (self.epochs[of] - 1, self.epochs[of]):
                options = {**self.options(), "HMQ_COORDINATOR": f"{epoch} {name}"}
                reply = self.log.do(part(tx_id, 0, 1, group=group, **options))
                if epoch != self.epochs[of] and "topic" in options and not isinstance(reply, Sent):
                    self.seen[f"earlier epoch {reply.why.name}"] += 1
                else:
                    assert epoch == self.epochs[of]
            if isinstance(reply, Sent):
                self.coordinated[tx_id] = of

    def settle_for(self, of: tuple[str, str], tx_id: str) -> None:
        group, name = of
        wanted = self.one_of([RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK])
        for epoch in (self.epochs[of] - 1, self.epochs[of]):
            command = changed(
                end(tx_id, None, wanted, group=group, half_index=ANY_HALF, log_offset=ANY_HALF),
                coordinator=Coordinator(name, epoch), decided_by=DecidedBy.COORDINATOR,
            )  # fmt: skip
            reply = self.log.do(command)
            if epoch != self.epochs[of]:
                assert isinstance(reply, Refused)
                assert reply.why is Why.SUPERSEDED
        if not (isinstance(reply, Refused) and reply.why is Why.AFTER_RESTORE):
            del self.coordinated[tx_id]
        if isinstance(reply, Settled):
            assert (reply.committed, reply.repeated) == (wanted == RequestedVerdict.COMMIT, reply.repeated)
            self.seen["settled by its coordinator"] += 1
        else:  # a policy rolled it back, or it is from before a restore
            assert isinstance(reply, Refused)
            if reply.why is Why.AFTER_RESTORE:
                assert (group, tx_id) in self.restored
                assert wanted == RequestedVerdict.ROLLBACK
                self.seen["rollback by a coordinator after a restore"] += 1
            else:
                assert reply.why in (Why.VERDICT_CONFLICT, Why.NOT_FOUND)

    def prepare_batch(self) -> None:
        """Tasks of a query prepare its next batch; now and then the query is started again, or a batch is larger than half a segment."""
        query = self.queries[self.one_of(self.queries)]
        if self.rng.random() < 0.05:
            query.begin_run()
        batch = query.next_batch
        if query.prepared and self.rng.random() < 0.1:
            by_hand = ResolveTransaction(query.group, batch.tx_id, RequestedVerdict.ROLLBACK, "ops")
            self.seen["batch rolled back by hand"] += isinstance(self.log.do(by_hand), Settled)
            if self.rng.random() < 0.5:
                return  # the driver does not know it, and decides
        large = self.rng.random() < 0.05
        for _ in range(8 if large else self.one_of([1, 1, 2, 4])):
            attempt = self.one_of(["0.1", "1.2"])
            found = query.prepared.setdefault(attempt, [])
            command = half_batch(
                batch, attempt, index=len(found), messages=self.one_of([1, 3]), topic=self.one_of(TOPICS),
                size=6_000 if large else self.one_of([50, 500, 3_000]), queue=self.one_of([0, 1]), group=query.group,
                delays=self.delays() if self.rng.random() < 0.3 else (), user=self.user,
            )  # fmt: skip
            reply = self.log.do(command)
            if isinstance(reply, Sent):
                found.append(command)
                if self.rng.random() < 0.1:
                    assert self.log.do(changed(command, connection=9)) == reply
                    self.seen["half batch sent again"] += 1
            elif isinstance(reply, Refused) and reply.why is Why.ALREADY_SETTLED:
                self.seen["batch rolled back"] += 1
                query.begin_run()
                return

    def delays(self) -> list[int]:
        """Spans and points in time, also past ones, as the messages of one half batch may have them."""
        now_ms = self.log.now_ms
        return [
            self.one_of([1, 700, 40_000, -(now_ms + 2_000), -(now_ms - 500), -1]) for _ in range(self.one_of([1, 3, 5]))
        ]

    def decide(self) -> None:
        """The driver of a query decides its batch, or repeats, contradicts and confuses decisions."""
        query = self.queries[self.one_of(self.queries)]
        batch = query.next_batch
        digest = f"{query.name} {batch.batch}".encode().ljust(16, b".")
        old = self.rng.random()
        if old < 0.15 and query.decided:
            number = self.one_of(query.decided)
            reply = self.log.do(DecideBatch(1, query.group, batch._replace(batch=number), query.decided[number][0], ()))
            found = self.log.do(FindDecision(1, batch._replace(batch=number)))
            is_last = number == query.last_batch
            if not is_last and found == DecisionFound(
                True, b"", -1, query.last_batch
            ):  # no space for more than the last
                assert isinstance(reply, Refused)
                assert reply.why is Why.VERDICT_CONFLICT
                self.seen["decision forgotten"] += 1
                return
            assert reply == BatchDecided(query.decided[number][1], True)
            assert found == DecisionFound(True, *query.decided[number], query.last_batch)
            other = self.log.do(DecideBatch(1, query.group, batch._replace(batch=number), b"other".ljust(16), ()))
            assert isinstance(other, Refused)
            assert other.why is Why.VERDICT_CONFLICT
            self.seen["decision repeated"] += 1
            return
        known = self.log.state.queries.get(key_of(self.log.state, query.name, query.topic))
        if old < 0.25 and known is not None and known.superseded:
            of_old = batch._replace(run=self.one_of(known.superseded))
            reply = self.log.do(DecideBatch(1, query.group, of_old, digest, ()))
            assert isinstance(reply, Refused)
            self.seen[f"old run {reply.why.name}"] += 1
            return
        won = [attempt for attempt in query.prepared if query.prepared[attempt] and self.rng.random() < 0.8]
        winners = [winner(*query.prepared[attempt]) for attempt in won]
        if winners and self.rng.random() < 0.15:
            wrong = winners[0]._replace(half_batches=winners[0].half_batches + 1)
            reply = self.log.do(DecideBatch(1, query.group, batch, digest, (wrong, *winners[1:])))
            assert isinstance(reply, Refused)
            self.seen["winner missing"] += reply.why is Why.INCOMPLETE
        is_last = self.rng.random() < 0.1
        command = DecideBatch(1, query.group, batch, digest, tuple(winners), is_last, self.user)
        while (reply := self.log.do(command)) == Done(again=True):
            self.seen["half batches copied"] += 1
        if isinstance(reply, BatchDecided):
            assert not reply.repeated
            query.decided[batch.batch] = (digest, reply.position)
            if is_last:
                self.write_after_the_last(query)
                self.over.append(self.queries.pop((query.name, query.topic)))
                self.count += 1
                name = f"later{self.count}"
                self.queries[name, query.topic] = QueryLife(name, query.group, query.topic, query.stream)
                self.seen["last decision"] += 1
            query.shown += sum(one.messages for one in winners)
            query.prepared.clear()
            query.batch += 1
            self.seen["decided"] += 1
        else:  # rolled back by an operator or a policy meanwhile: the query is started again
            assert isinstance(reply, Refused), reply
            is_new = key_of(self.log.state, query.name, query.topic) not in self.log.state.queries
            assert reply.why is (Why.LIMIT_REACHED if is_new else Why.INCOMPLETE), reply
            self.seen["query refused" if is_new else "batch missing"] += 1
            query.begin_run()

    def write_after_the_last(self, query: "QueryLife") -> None:
        """A client that says that its query is over, and goes on, gets nothing written."""
        batch = query.next_batch._replace(batch=query.next_batch.batch + 1)
        for command in (
            half_batch(batch, "late", group=query.group),
            DecideBatch(1, query.group, batch, b"late".ljust(16), ()),
        ):
            reply = self.log.do(command)
            assert isinstance(reply, Refused)
            assert reply.why is Why.INVALID_PARAMETER
        self.seen["written after the last decision"] += 1

    def send(self) -> None:
        self.count += 1
        command = message(f"M{self.count}", **self.options())
        if self.plain and self.rng.random() < 0.3:
            command = changed(self.one_of(self.plain), connection=self.one_of([1, 2]))
        self.plain.append(command)
        self.log.do(command)

    def send_batch(self) -> None:
        self.count += 1
        entries = [(b"entry", encode({"UNIQ_KEY": f"B{self.count}-{at}"})) for at in range(4)]
        command = batch_of(*entries, topic=self.one_of(TOPICS), queue=self.one_of([-1, 0, 1]))
        reply = self.log.do(command)
        if self.rng.random() < 0.3 and not isinstance(reply, Refused):
            assert self.log.do(changed(command, connection=3)) == reply

    def send_back(self) -> None:
        self.log.do(EnsureGroup("CG"))
        message_back = StoredMessage(
            "orders", 0, 3, 0, 8, 7, PEER, 9, PEER, self.one_of([0, 1, 15, 16]), 0, b"failed", 3,
            encode({"UNIQ_KEY": f"R{self.count}", "TAGS": "TagA"}),
        )  # fmt: skip
        self.log.do(SendBack(1, "CG", 200, 0, -1, "", message_back, not_consumed=self.count % 5 == 0))

    def wait(self) -> None:
        self.log.later(self.one_of([1, 50, 700, 3_000, 30_000]))

    def tick(self) -> None:
        for effect in self.log.tick():
            if isinstance(effect, SendCheck):
                self.seen["check"] += 1
                if self.rng.random() < 0.2:
                    self.log.do(CheckNotSent(effect.group, effect.tx_id, effect.connection))
                elif self.rng.random() < 0.9:
                    self.log.session(CheckDelivered(effect.group, effect.tx_id, effect.checks, self.log.now_ms))
            elif isinstance(effect, PolicyActed) and effect.rolled_back:
                # From the log: memory may have forgotten it, where it keeps no more than ten ids.
                position = next(
                    one.offset
                    for one in reversed(self.log.of(RolledBack))
                    if (one.group, one.tx_id) == (effect.group, effect.tx_id)
                )
                self.verdicts[effect.group, effect.tx_id] = (False, position)
                self.seen["rolled back by policy"] += 1
            elif isinstance(effect, PolicyActed):
                self.seen[f"parked by {effect.because.name}"] += 1
        self.seen["tick"] += 1

    def connect(self) -> None:
        self.users()
        connection = self.rng.randrange(10, 14)
        self.log.session(
            self.one_of([producer(connection, 0, *GROUPS), ConnectionClosed(connection), consumer(connection, 0)])
        )

    def poll(self) -> None:
        """Somebody fetches checks, once or for a while."""
        connection, group = self.rng.randrange(20, 23), self.one_of(GROUPS)
        self.log.session(Polling(connection, f"poller-{connection}", group, self.one_of([1, 2, 32])))
        if self.rng.random() < 0.7:
            self.tick()
        if self.rng.random() < 0.5:
            self.log.session(self.one_of([PollEnded(connection, group), ConnectionClosed(connection)]))

    def policy(self) -> None:
        group = self.one_of(GROUPS)
        limit = self.one_of([0, 1, 2, 4])
        past = self.one_of([PastLimit.ROLLBACK, PastLimit.PARKED]) if limit else PastLimit.WAIT
        age_ms = self.one_of([0, 0, 60_000, 200_000])
        settings = ProducerSettings(group, limit, past, age_ms)
        assert self.log.do(SetProducer(settings, None, self.by())) == ProducerSettingsStored(settings)
        noted = NoteAction(OperatorAction.KICK_CLIENT, "noisy", Actor("ada", "ticket 17", "10.0.0.1:5"))
        assert self.log.do(noted) == Done()

    def ask(self) -> None:
        if self.open:
            group, tx_id = self.one_of(self.open)
            reply = self.log.do(CheckNow(group, tx_id))
            self.seen["asked by hand"] += isinstance(reply, Asked)

    def offsets(self) -> None:
        self.log.do(EnsureGroup(self.one_of(["CG", "CG2"])))
        self.log.do(CommitOffset("CG", self.one_of(TOPICS), self.one_of([0, 1]), self.rng.randrange(100), self.by()))
        if self.rng.random() < 0.2:
            self.log.session(LogOffsetsNow())
        if self.over and self.rng.random() < 0.3:
            over = self.one_of(self.over)
            gone = self.log.do(ForgetQuery(over.name, over.topic, Actor("ada", "over", "10.0.0.1:5")))
            self.seen[f"query {type(gone).__name__} by hand"] += 1
        if self.rng.random() < 0.2:
            gone = self.log.do(DeleteGroup(self.one_of(["CG", "CG2"]), self.rng.random() < 0.5, self.by()))
            self.seen["group deleted" if isinstance(gone, ConsumerGroupDeleted) else "group with members"] += 1

    def locks(self) -> None:
        """Clients take turns with queues; the group's settings change meanwhile."""
        group, client_id = self.one_of(["CG", "CG", "nobody"]), self.one_of(["client-a", "client-b"])
        queues = tuple((self.one_of([*TOPICS, "none"]), self.one_of([0, 1, 9])) for _ in range(3))
        self.log.do(EnsureGroup("CG"))
        self.log.do(LockQueues(group, client_id, queues))
        if self.rng.random() < 0.3:
            self.log.do(UnlockQueues(group, client_id, self.one_of([queues, None])))
        if self.rng.random() < 0.1:
            held = self.one_of([None, None, (), tuple(TOPICS), ("none",)])
            self.log.do(SetGroup("CG", self.one_of([1, 16, None]), 1, True, hold_topics=held))
            self.seen["hold"] += bool(self.log.state.groups["CG"].hold_topics)
        self.seen["holder"] += bool(self.log.state.holders)

    def topics(self) -> None:
        self.settings()
        name = self.one_of([*TOPICS, "spare"])
        if self.rng.random() < 0.5:
            self.log.do(DeleteTopic(name, self.by()))
        else:
            queues = self.one_of([2, 4, 6])
            self.log.do(SetTopic(name, queues, queues, 6, self.by()))

    def disk(self) -> None:
        self.log.session(DiskSpace(self.rng.random() < 0.3))

    def publish(self) -> None:
        self.log.session(Published(self.log.state.log_end, self.log.state.log_end))

    def trim(self) -> None:
        start = self.one_of(self.log.state.bases)
        state = self.log.state
        if tied_start(state.ties.items(), start, state.settings.segment_bytes) != start:
            assert isinstance(self.log.do(CopyForward(start, 100)), Refused)
            self.seen["tied"] += 1
            return
        while True:
            reply = self.log.do(CopyForward(start, self.one_of([1, 7, 100])))
            if reply != Done(again=True):
                break
            if self.rng.random() < 0.3:
                self.settle()
        if isinstance(reply, Done):
            before = self.log.state.log_start
            unread = tuple(unread_between(self.log.state, holding(self.log.state), before, start))
            if unread and start > before:
                reply = self.log.do(TrimLog(start))
                assert isinstance(reply, Refused), reply
                assert reply.why is Why.NOT_NOW
                self.seen["held"] += 1
            reply = self.log.do(TrimLog(start, unread))
            assert reply == Done(), reply
            self.seen["trim"] += self.log.state.log_start > before

    def compare(self) -> None:
        live = durable_digest(self.log.state) if not self.log.state.batch_open else None
        redone = durable_digest(self.log.redone())
        live = live or durable_digest(self.log.state)
        assert_same(live, redone)
        check(self.log.state)
        self.seen["compared"] += 1

    def restart(self) -> None:
        self.compare()
        self.log.restart()
        self.seen["restart"] += 1

    def restart_otherwise(self) -> None:
        """As an operator does who changes ``--check-immunity-ms``; from here on every redo has the new setting. Settings that were changed
        while the broker ran are then given up, every other time."""
        self.compare()
        settings = replace(self.log.settings, check_immunity_ms=self.one_of([0, 700, 6_000, 60_000]))
        unset = tuple(self.log.state.recorded_settings) if self.log.state.log_end // 8 % 2 else ()
        self.log.begin_epoch(settings, unset)
        if unset:
            assert not self.log.state.recorded_settings
            self.seen["configuration wins"] += 1
        self.seen["restart with another immunity"] += 1
        self.compare()

    STEPS: tuple[tuple[Callable[["Life"], None], int], ...] = (
        (prepare, 30), (settle, 30), (send, 15), (send_batch, 3), (send_back, 3), (wait, 10), (tick, 12), (connect, 5),
        (offsets, 5), (topics, 2), (disk, 2), (publish, 5), (trim, 2), (compare, 2), (restart, 1),
        (poll, 5), (policy, 1), (ask, 4), (restart_otherwise, 1), (locks, 3),
        (prepare_batch, 12), (decide, 8), (coordinate, 8),
    )  # fmt: skip

    def live(self) -> None:
        steps = [step for step, _ in self.STEPS]
        weights = [weight for _, weight in self.STEPS]
        chunks = self.log.snapshot()
        for at in range(1, COMMANDS + 1):
            self.rng.choices(steps, weights)[0](self)
            if at % SNAPSHOT_COMMANDS == 0:
                self.log.close()
                self.compare_with_snapshot(chunks)
                chunks = self.log.snapshot()
        self.compare()

    def compare_with_snapshot(self, chunks: list[bytes]) -> None:
        """Unless the log behind it was trimmed meanwhile."""
        if self.log.state.log_start <= _snapshot_end(self.log.settings, chunks):
            assert_same(durable_digest(self.log.state), durable_digest(self.log.reloaded(chunks)))
            self.seen["snapshot"] += 1

    # --- the oracle ----------------------------------------------------------------------------------------------

    def look_at_records(self) -> None:
        shown_halves: Counter[int] = Counter()
        settled: Counter[tuple[str, str]] = Counter()
        queues: dict[tuple[int, int], list[int]] = {}
        gone: set[int] = set()
        #: (name, topic, batch), and by (name, topic).
        decided: Counter[tuple[str, str, int]] = Counter()
        shown_of: Counter[tuple[str, str]] = Counter()
        shown_bodies: Counter[int] = Counter()
        #: Half index -> its delayed entries; first offset of a delayed message of a decided half batch -> (query, when it is due).
        delayed_of: dict[int, bytes] = {}
        waiting: dict[int, tuple[tuple[str, str], int]] = {}
        next_half = restored_half = 0
        self.log.close()
        for time_ms, record in [
            (batch.broker_time_ms, record) for batch in self.log.batches for record in batch.records
        ]:
            half = record.half if isinstance(record, CopiedHalfBatch) else record
            if isinstance(half, HalfBatch | Half) and half.batch is not None and half.batch.delayed_entries:
                before = delayed_of.setdefault(half.half_index, half.batch.delayed_entries)
                assert before == half.batch.delayed_entries
                self.seen["half batch with delays copied"] += isinstance(record, CopiedHalfBatch)
            if isinstance(record, CopiedDelayed):
                self.seen["delayed message of a half batch copied"] += record.first_offset in waiting
            if isinstance(record, MessageRecord):
                queues.setdefault((record.topic_id, record.message.queue_id), []).append(record.message.queue_offset)
            if isinstance(record, Committed | RolledBack):
                settled[record.group, record.tx_id] += 1
            self.seen["verdict by a user"] += isinstance(record, Committed | RolledBack | Decided) and record.user != ""
            self.seen["copy of a user"] += isinstance(record, Copied) and record.user != ""
            if isinstance(record, Committed):
                assert record.decided_by != DecidedBy.POLICY, "a policy never commits"
            if isinstance(record, Decided):
                query_name, number, _ = of_tx_id(record.tx_id)
                name = query_name, record.query_topic
                decided[*name, number] += 1
                gone.update(record.lost)
                for batch_ref in record.refs:
                    shown_halves[batch_ref.half_index] += 1
                    assert (batch_ref.queue_offset < 0) == (batch_ref.half_index in delayed_of)
                    if batch_ref.queue_offset < 0:
                        for delay, at, *_ in delayed_items(delayed_of[batch_ref.half_index]):
                            due_ms = max(time_ms + delay if delay > 0 else -delay, time_ms)
                            assert batch_ref.first_offset + at not in waiting
                            waiting[batch_ref.first_offset + at] = (name, due_ms)
                        self.seen["half batch with delays decided"] += 1
                        continue
                    offsets = queues.setdefault((batch_ref.topic_id, batch_ref.queue_id), [])
                    offsets += range(batch_ref.queue_offset, batch_ref.queue_offset + batch_ref.messages)
                    shown_bodies[batch_ref.first_offset] += 1
                    shown_of[name] += batch_ref.messages
                self.seen["half batch with delays lost"] += sum(index in delayed_of for index in record.lost)
            if isinstance(record, HalfRecord | HalfBatch):
                next_half = record.half_index + 1
            if isinstance(record, Restored):
                restored_half = next_half
            if isinstance(record, Parked) and record.because is ParkedBecause.RESTORED:
                assert record.half_index < restored_half
                self.seen["parked after a restore"] += 1
            if isinstance(record, RolledBack):
                # Batches that a later run supersedes are rolled back as ever.
                if min(record.half_indexes, default=restored_half) < restored_half and not record.tx_id.startswith("q"):
                    assert record.decided_by is DecidedBy.OPERATOR, record
                    self.seen["rolled back by an operator after a restore"] += 1
                gone.update(record.half_indexes)
                self.seen["half batch with delays rolled back"] += sum(i in delayed_of for i in record.half_indexes)
            if isinstance(record, Committed | Released):
                for ref in record.refs:
                    assert ref.offset // 65_536 == record.offset // 65_536
                    if ref.due_ms == 0:
                        queues.setdefault((ref.topic_id, ref.queue_id), []).append(ref.queue_offset)
                        shown_bodies[ref.first_offset] += 1
                        shown_halves[ref.half_index] += ref.half_index >= 0
                        if ref.first_offset in waiting:
                            name, due_ms = waiting.pop(ref.first_offset)
                            # A batch of several commands has the time of its first one.
                            assert time_ms >= due_ms or self.log.batch_commands > 1
                            shown_of[name] += 1
                            self.seen["message of a half batch released"] += 1
        assert all(count == 1 for count in settled.values())
        assert set(settled) >= set(self.verdicts)
        assert all(count <= 1 for count in shown_bodies.values())
        assert all(count == 1 for count in decided.values())
        delayed = self.log.state.delayed
        assert {at: delayed[at].due_ms for at in waiting if at in delayed} == {
            at: due for at, (_, due) in waiting.items()
        }
        for name, _ in waiting.values():
            shown_of[name] += 1
        self.seen["query forgotten"] += sum(
            key_of(self.log.state, query.name, query.topic) not in self.log.state.queries for query in self.over
        )
        for query in (*self.queries.values(), *self.over):
            name = query.name, query.topic
            assert {(*name, batch) for batch in query.decided} == {key for key in decided if key[:2] == name}
            assert shown_of[name] == query.shown
        assert not {half_index for half_index, count in shown_halves.items() if count} & gone
        for queue, offsets in queues.items():
            assert offsets == list(range(len(offsets))), queue
        self.seen["shown"] += len(shown_bodies)
        self.seen["delayed"] += sum(isinstance(record, DelayedRecord) for record in self.log.records)


class RestoredLife(Life):
    """Now and then the whole log is restored from a backup."""

    def restore(self) -> None:
        self.compare()
        self.log.restore()
        self.compare()
        groups = self.log.state.producer_groups.items()
        self.restored = {(name, tx_id) for name, group in groups for tx_id in group.undecided}
        self.seen["restored"] += 1

    STEPS = (*Life.STEPS, (restore, 2))  # type: ignore[assignment]  # its own method


def _snapshot_end(settings: BrokerSettings, chunks: list[bytes]) -> int:
    from halfmq.core.snapshot import load_rows

    return load_rows(settings, chunks).log_end


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for field in left:
        assert left[field] == right[field], field


@pytest.mark.parametrize("seed", range(20))
def test_redo_of_what_the_log_has_gives_the_live_state(seed: int) -> None:
    life = Life(seed)
    life.live()
    life.look_at_records()
    assert life.seen["compared"]
    assert life.seen["settled"]


@pytest.mark.parametrize("seed", range(10))
def test_redo_gives_the_live_state_of_restored_stores_in_which_only_operators_roll_back_what_was_undecided(
    seed: int,
) -> None:
    life = RestoredLife(seed)
    life.live()
    life.look_at_records()
    assert life.seen["restored"]
    assert life.seen["compared"]


def test_the_restored_lives_meet_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200, 206):
        life = RestoredLife(seed)
        life.live()
        life.look_at_records()
        seen.update(life.seen)
    for what in (
        "rollback after a restore", "rollback by a coordinator after a restore", "rolled back by an operator after a restore",
        "parked after a restore", "trim", "settled", "decided", "epoch taken",
    ):  # fmt: skip
        assert seen[what], (what, seen)


def test_the_random_lives_meet_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100, 122):
        life = Life(seed)
        life.live()
        life.look_at_records()
        seen.update(life.seen)
    for what in (
        "half sent again", "repeated", "conflict", "incomplete", "check", "trim", "restart", "snapshot", "shown",
        "delayed", "past the window", "rolled back by policy", "parked by CHECKS", "parked by AGE", "asked by hand",
        "epoch taken", "earlier epoch SUPERSEDED", "settled by its coordinator", "coordinator forgotten",
        "setting Done", "setting Refused", "configuration wins", "user UserIsSet", "user UserRemoved", "user Refused", "verdict by a user", "copy of a user",
        "fenced", "comparison agrees", "finding", "finding forgotten", "last decision", "query forgotten", "query QueryRemoved by hand", "restart with another immunity", "holder", "hold", "held", "group deleted", "group with members", "decided", "decision repeated",
        "half batch sent again", "half batches copied", "old run FENCED", "winner missing", "batch rolled back", "batch missing",
        "tied", "half batch with delays decided", "half batch with delays lost", "half batch with delays rolled back",
        "half batch with delays copied", "delayed message of a half batch copied", "message of a half batch released",
    ):  # fmt: skip
        assert seen[what], (what, seen)


def test_a_state_that_forgets_a_verdict_at_redo_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import halfmq.core.apply as module

    life = Life(1)  # of seed 2 a base says it first
    life.live()
    monkeypatch.setitem(module._APPLY, RolledBack, lambda state, record: None)
    redone: State = life.log.redone()
    assert durable_digest(redone) != durable_digest(life.log.state)
