"""The search before a half whose id an application chose: what is read, what the decision gets, when it searches again."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.core_log import CoreLog, end, half
from tests.support.services import CoreSequencer, FakePeer

from halfmq.broker.services import chosen_ids
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.core.commands import EarlierVerdict, RequestedVerdict, SendHalf
from halfmq.core.decision import Failed, Refused, Sent, Why
from halfmq.errors import StoreDamaged
from halfmq.model.records import Committed, RolledBack
from halfmq.model.settings import BrokerSettings

Verdict = Committed | RolledBack
FORGETFUL = BrokerSettings(dedup_ids_max=1)


class Index:
    """The index and the store, over the records of the core's log up to ``indexed_to``."""

    def __init__(self, core: CoreLog) -> None:
        self.core = core
        #: Number of parts to read.
        self.unread = 0
        self.indexed_to = 1 << 40
        self.settled_ids = self
        #: Positions that are found beside the right ones, newest first.
        self.wrong: list[int] = []
        self.searches = 0
        self.read: list[int] = []
        self.broken: Exception | None = None

    @property
    def is_ready(self) -> bool:
        return self.unread == 0

    @property
    def next_part(self) -> int | None:
        return self.unread or None

    def read_part(self, part: int) -> bytes:
        return b"part %d" % part

    def use_part(self, part: int, entries: bytes) -> None:
        assert entries == b"part %d" % part
        self.unread -= 1

    def find(self, group: str, tx_id: str) -> list[int]:
        assert self.is_ready
        self.searches += 1
        mine = [
            record.offset
            for kind in (Committed, RolledBack)
            for record in self.core.of(kind)
            if (record.group, record.tx_id) == (group, tx_id) and record.offset < self.indexed_to
        ]
        return self.wrong + sorted(mine, reverse=True)

    def verdict(self, position: int) -> Verdict:
        self.read.append(position)
        if self.broken is not None:
            raise self.broken
        (record,) = [
            record for kind in (Committed, RolledBack) for record in self.core.of(kind) if record.offset == position
        ]
        return record  # type: ignore[no-any-return]


class HandOffload:
    """Runs its work when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], object], Callable[[Any], None]]] = []

    def run(self, work: Callable[[], object], done: Callable[[Any], None]) -> None:
        self.asked.append((work, done))

    def finish(self, result: object = None) -> None:
        ((work, done),), self.asked = self.asked, []
        done(work() if result is None else result)


class Bench:
    def __init__(self, settings: BrokerSettings = FORGETFUL, *, unread: int = 0) -> None:
        self.sequencer = CoreSequencer(settings)
        self.core = self.sequencer.core
        self.index = Index(self.core)
        self.index.unread = unread
        self.offload = HandOffload()
        self.flushed = 0
        self.chosen = ChosenIds(self.sequencer, self.index, self.offload, self.flush)  # type: ignore[arg-type]
        self.replies: list[Any] = []

    def flush(self) -> None:
        self.flushed += 1

    def send(self, tx_id: str, peer: FakePeer | None = None, **options: Any) -> None:
        def deliver(context: Any, reply: Any) -> None:
            assert context == tx_id
            self.replies.append(reply)

        command = half(tx_id, **options)
        assert isinstance(command, SendHalf)
        assert command.searched_to == 0, "no id of a client"
        self.chosen.send(peer or FakePeer(), command, deliver, tx_id)  # type: ignore[arg-type]

    def settle(self, tx_id: str, wanted: RequestedVerdict = RequestedVerdict.COMMIT) -> int:
        """Settles a transaction, whose verdict pushes the one before out of memory; returns its position."""
        settled = self.core.do(end(tx_id, self.core.do(half(tx_id)), wanted))
        return settled.position  # type: ignore[union-attr]


def test_a_new_id_is_stored_without_a_look_at_the_log() -> None:
    bench = Bench()
    bench.settle("order-1")
    bench.send("order-2")
    assert isinstance(bench.replies[0], Sent)
    assert (bench.index.searches, bench.index.read) == (1, [])


@pytest.mark.parametrize(
    ("wanted", "standing"),
    [(RequestedVerdict.COMMIT, "COMMITTED"), (RequestedVerdict.ROLLBACK, "ROLLED_BACK")],
)
def test_a_used_id_is_refused_with_its_verdict(wanted: RequestedVerdict, standing: str) -> None:
    bench = Bench()
    position = bench.settle("order-1", wanted)
    bench.settle("order-2")
    bench.send("order-1")
    (refused,) = bench.replies
    assert (refused.why, refused.standing, refused.position) == (Why.ALREADY_SETTLED, standing, position)
    assert bench.sequencer.commands[-1].earlier == EarlierVerdict(standing == "COMMITTED", position)


def test_a_verdict_of_other_names_is_passed_over() -> None:
    bench = Bench()
    position, other = bench.settle("order-1"), bench.settle("order-2")
    bench.settle("order-3")
    bench.index.wrong = [other]
    bench.send("order-4")
    assert isinstance(bench.replies[-1], Sent)
    bench.send("order-1")
    assert bench.replies[-1].position == position
    assert bench.index.read == [other, other, position]


def test_an_id_that_memory_knows_is_not_searched() -> None:
    bench = Bench()
    position = bench.settle("order-1")
    bench.send("order-1")
    assert bench.replies[-1].position == position
    bench.core.do(half("order-2"))
    bench.send("order-2")
    assert isinstance(bench.replies[-1], Sent)
    assert bench.index.searches == 0


def test_what_was_trimmed_is_not_read() -> None:
    bench = Bench()
    position = bench.settle("order-1")
    bench.settle("order-2")
    bench.core.state.log_start = position + 1
    bench.send("order-1")
    assert isinstance(bench.replies[-1], Sent)
    assert bench.index.read == []


@pytest.mark.parametrize("error", [LookupError("no verdict"), StoreDamaged("torn"), OSError(5, "broken")])
def test_a_verdict_that_cannot_be_read_stops_the_half(error: Exception) -> None:
    bench = Bench()
    bench.settle("order-1")
    bench.settle("order-2")
    bench.index.broken = error
    bench.send("order-1")
    assert isinstance(bench.replies[-1], Failed)
    assert bench.core.state.producer_groups["PG"].undecided == {}
    bench.index.broken = None
    bench.send("order-1")
    assert bench.replies[-1].why is Why.ALREADY_SETTLED


def test_verdicts_that_were_forgotten_after_the_search_are_searched_again() -> None:
    """Method: the index lags, as it does between a decision and the sync; the verdict leaves memory before the half is decided."""
    bench = Bench()
    first = bench.settle("order-1")
    bench.settle("order-2")
    bench.index.indexed_to = first
    bench.sequencer.is_held = True
    bench.send("order-1")
    assert bench.replies == []
    bench.index.indexed_to = 1 << 40
    bench.sequencer.release()
    (refused,) = bench.replies
    assert (refused.why, refused.position) == (Why.ALREADY_SETTLED, first)
    assert bench.index.searches == 2


def test_an_id_that_memory_forgets_before_the_decision_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulated seed 16100943201525: the window of the id ended between the request and its decision."""
    bench = Bench()
    first = bench.settle("order-1")
    decide = bench.sequencer.submit_small

    def after_another_verdict(*arguments: Any) -> None:
        monkeypatch.undo()
        bench.settle("order-2")
        decide(*arguments)

    monkeypatch.setattr(bench.sequencer, "submit_small", after_another_verdict)
    bench.send("order-1")
    (refused,) = bench.replies
    assert (refused.why, refused.position) == (Why.ALREADY_SETTLED, first)


def test_halves_wait_until_the_index_was_read_once() -> None:
    bench = Bench(unread=2)
    position = bench.settle("order-1")
    bench.settle("order-2")
    bench.chosen.read_index()
    bench.send("order-1")
    bench.send("order-3")
    for _ in range(2):
        assert bench.replies == []
        assert len(bench.offload.asked) == 1
        bench.offload.finish()
    refused, sent = bench.replies
    assert refused.position == position
    assert isinstance(sent, Sent)
    assert bench.flushed == 1
    bench.chosen.read_index()
    assert bench.offload.asked == []


def test_an_index_that_cannot_be_read_fails_halves_and_is_tried_again() -> None:
    bench = Bench(unread=2)
    bench.send("order-1")
    bench.offload.finish(OSError(5, "broken"))
    assert isinstance(bench.replies[-1], Failed)
    assert bench.flushed == 1
    bench.send("order-1")
    bench.offload.finish()
    bench.offload.finish()
    assert isinstance(bench.replies[-1], Sent)


def test_only_so_many_halves_wait_for_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen_ids, "WAITING_MAX", 2)
    bench = Bench(unread=2)
    for number in range(3):
        bench.send(f"order-{number}")
    (refused,) = bench.replies
    assert isinstance(refused, Refused)
    assert refused.why is Why.NOT_NOW
    assert refused.text.startswith(
        "address 10.0.0.7 has 2 of 2 halves that wait until the index of settled ids is read"
    )
    bench.offload.finish()
    bench.offload.finish()
    assert len(bench.replies) == 3


def test_one_user_leaves_others_a_quarter_of_the_halves_that_wait_for_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chosen_ids, "WAITING_MAX", 4)
    bench = Bench(unread=2)
    for number in range(4):
        bench.send(f"flood-{number}", FakePeer(number, user="flood"))
    (refused,) = bench.replies
    assert "user 'flood' has 3 of 4 halves" in refused.text
    assert "one user may have 3: send it again" in refused.text
    bench.send("shop-1", FakePeer(5, user="shop"))
    bench.send("shop-2", FakePeer(5, user="shop"))
    assert "there are 4 of 4 halves" in bench.replies[-1].text
    assert "3 of them of user 'flood'" in bench.replies[-1].text
    bench.offload.finish()
    bench.offload.finish()
    assert [isinstance(reply, Sent) for reply in bench.replies] == [False, False, True, True, True, True]
    assert bench.chosen._shares.taken == 0
