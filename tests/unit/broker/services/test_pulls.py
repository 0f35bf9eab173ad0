"""Pulls without a frame: the order of the checks, what a look comes to, who waits, and what is kept of who waits."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.core_log import PEER, consumer
from tests.support.services import CoreSequencer, FakePeer, FakeQueues, HandLoop, Outgoing

from halfmq import limits
from halfmq.broker.services import pulls as module
from halfmq.broker.services.pulls import Pulled, Pulls, Status
from halfmq.broker.services.topics import GroupsOnUse
from halfmq.core.commands import CommitOffset, EnsureGroup, SetGroup, SetTopic
from halfmq.core.decision import Refused, WakeQueue, Why
from halfmq.model.ids import java_string_hash
from halfmq.model.queue_reads import PullRequest
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import StoredMessage, body_crc_of, decode, encode


class Bench:
    """A topic T with one queue, and the group C."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.sequencer = CoreSequencer(settings)
        self.queues = FakeQueues(self.sequencer)
        self.loop = HandLoop()
        self.outgoing = Outgoing()
        self.flushed = 0
        self.sequencer.core.do(SetTopic("T", 1, 1, 6))
        self.sequencer.core.do(EnsureGroup("C"))
        self.topic = self.sequencer.view.topics_by_name["T"].topic_id
        self.pulls = Pulls(
            self.sequencer,  # type: ignore[arg-type]
            self.queues,
            self.loop,  # type: ignore[arg-type]
            GroupsOnUse(self.sequencer),  # type: ignore[arg-type]
            self.outgoing,
            self._flush,
        )

    def _flush(self) -> None:
        self.flushed += 1

    def ask(self, peer: FakePeer | None = None, **changes: Any) -> list[Any]:
        """What was answered, and will be: a list that grows."""
        answers: list[Any] = []
        request = replace(PullRequest("C", "T", 0, 0, 32, subscription="*"), **changes)
        self.pulls.pull(peer or FakePeer(), request, answers.append)
        return answers

    def one(self, **changes: Any) -> Any:
        (answer,) = self.ask(**changes)
        return answer

    def message(self, body: bytes = b"x", **more: Any) -> int:
        return self.queues.add(self.topic, 0, body, **more)

    def wake(self) -> None:
        self.pulls.wake(WakeQueue(self.topic, 0))


def bodies(pulled: Pulled) -> list[bytes]:
    found, at = [], 0
    while at < len(pulled.body):
        message, _, size = decode(pulled.body, at)
        found.append(message.body)
        at += size
    return found


# --- checks ---------------------------------------------------------------------------------------------------------


def test_group_is_looked_at_before_topic_queue_and_subscription() -> None:
    """RocketMQ's order: a client acts on the first thing that is wrong."""
    bench = Bench()
    wrong = {"topic": "Nowhere", "queue_id": 7, "subscription": "||"}
    bench.sequencer.core.do(SetGroup("C", 16, 1, False))
    assert bench.one(**wrong).why is Why.NO_PERMISSION
    bench.sequencer.core.do(SetGroup("C", 16, 1, True))
    assert bench.one(**wrong).why is Why.TOPIC_NOT_EXIST
    assert bench.one(**{**wrong, "topic": "T"}).why is Why.INVALID_PARAMETER
    assert bench.one(subscription="||").why is Why.SUBSCRIPTION_PARSE_FAILED
    assert bench.one(subscription="a > 1", expression_type="SQL92").why is Why.FILTER_NOT_SUPPORTED
    assert isinstance(bench.one(), Pulled)


def test_topics_of_the_broker_and_those_without_permission_are_not_read() -> None:
    bench = Bench()
    for name in module.SYSTEM_TOPICS:
        assert bench.one(topic=name).why is Why.NO_PERMISSION
    bench.sequencer.core.do(SetTopic("T", 1, 1, 2))
    assert bench.one().why is Why.NO_PERMISSION


def test_without_a_subscription_the_heartbeat_counts_and_must_be_new_enough() -> None:
    bench = Bench()
    bench.message(tag_hash=java_string_hash("A"))
    assert bench.one(subscription=None).why is Why.SUBSCRIPTION_NOT_EXIST
    bench.sequencer.note(consumer(1, 0, "C", "T", "B", version=4))
    assert bench.one(subscription=None, topic="%RETRY%C").why is Why.SUBSCRIPTION_NOT_EXIST
    assert bench.one(subscription=None, subscription_version=5).why is Why.SUBSCRIPTION_NOT_LATEST
    assert bench.one(subscription=None, subscription_version=4).status is Status.NO_MATCH


def test_a_group_that_is_not_there_is_made_durably_before_its_pull_and_refused_where_it_may_not_be() -> None:
    bench = Bench()
    bench.sequencer.is_held = True
    answers = bench.ask(group="New")
    assert answers == []
    bench.sequencer.release()
    assert answers[0].status is Status.NOTHING_NEW
    bench = Bench(BrokerSettings(segment_bytes=1 << 16, auto_create_groups=False))
    assert bench.one(group="New").why is Why.GROUP_NOT_EXIST


def test_a_pull_whose_peer_left_while_its_group_was_made_is_dropped() -> None:
    bench, peer = Bench(), FakePeer()
    bench.sequencer.is_held = True
    answers = bench.ask(peer, group="New", wait_ms=9_000)
    peer.is_open = False
    bench.pulls.peer_gone(peer.number)
    bench.sequencer.release()
    assert (answers, bench.pulls.held, bench.loop.waits) == ([], 0, 0)


def test_tools_read_without_a_group_unless_they_commit() -> None:
    bench = Bench()
    bench.ask(group=module.TOOLS_GROUP)
    assert module.TOOLS_GROUP not in bench.sequencer.view.groups
    bench.ask(group=module.TOOLS_GROUP, commit_offset=3)
    assert bench.sequencer.commands == [
        EnsureGroup(module.TOOLS_GROUP),
        CommitOffset(module.TOOLS_GROUP, "T", 0, 3),
    ]


def test_an_offset_is_kept_only_with_a_pull_that_is_served() -> None:
    bench = Bench()
    bench.ask(commit_offset=0, subscription="||")
    assert bench.sequencer.commands == []
    bench.ask(commit_offset=0)
    assert bench.sequencer.commands == [CommitOffset("C", "T", 0, 0)]


# --- one look -------------------------------------------------------------------------------------------------------


def test_what_was_found_is_reported_and_the_next_offset_is_after_it() -> None:
    bench = Bench()
    given: list[Any] = []
    bench.pulls.on_given = lambda *one: given.append(one)
    for number in range(3):
        bench.message(b"%d" % number)
    pulled = bench.one(queue_offset=1)
    assert (pulled.status, pulled.next_offset, pulled.min_offset, pulled.max_offset) == (Status.FOUND, 3, 0, 3)
    assert bodies(pulled) == [b"1", b"2"]
    assert given == [("C", "T", bench.topic, 0, 3, 2)]
    for tag in "aba":
        bench.message(tag_hash=java_string_hash(tag))
    assert bench.one(queue_offset=3, subscription="b").next_offset == 6
    assert given[1:] == [("C", "T", bench.topic, 0, 6, 1)], "what is not wanted is not given"


def test_offsets_outside_of_the_queue_are_corrected() -> None:
    bench = Bench()
    for _ in range(3):
        bench.message()
    bench.queues.low[bench.topic, 0] = 1
    for offset, status, following in (
        (0, Status.OFFSET_MOVED, 1),
        (3, Status.NOTHING_NEW, 3),
        (9, Status.OFFSET_MOVED, 3),
    ):
        pulled = bench.one(queue_offset=offset)
        assert (pulled.status, pulled.next_offset) == (status, following)


@pytest.mark.parametrize(("messages_max", "given"), [(-1, 1), (0, 1), (2, 2), (4, 4), (5, 4), (1 << 30, 4)])
def test_number_of_messages_is_at_least_one_and_bounded(
    messages_max: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PULL_MESSAGES_MAX", 4)
    bench = Bench()
    for _ in range(6):
        bench.message()
    assert len(bodies(bench.one(messages_max=messages_max))) == given


@pytest.mark.parametrize("half_index", [7, -2], ids=["half", "delayed"])
def test_a_message_that_became_visible_late_has_its_place_and_time_in_the_queue(half_index: int) -> None:
    stored = StoredMessage("T", 0, 5, 0, 0, 1, PEER, 100, PEER, 0, 0, b"x", body_crc_of(b"x"), b"")
    body = bytearray(b"".join(encode(stored, 1_000)))
    module._patch(body, 0, 2_000, 9, 300, half_index, 1_000)
    message, log_offset, _ = decode(body)
    assert (log_offset, message.queue_offset, message.store_time_ms) == (2_000, 9, 300)
    assert message.prepared_offset == (1_000 if half_index >= 0 else 0)


def test_where_a_copied_half_batch_was_first_is_found_once_for_all_its_messages_in_a_response() -> None:
    bench = Bench()
    for _ in range(6):
        bench.message()
    entries = bench.queues._queues[bench.topic, 0]
    for at, half_index in enumerate((4, 4, 4, 5, 5, 4)):
        entries[at] = entries[at]._replace(half_index=half_index)
    asked: list[int] = []

    def first_offset(offset: int) -> int:
        asked.append(offset)
        return offset - 10 * entries[[one.offset for one in entries].index(offset)].half_index

    bench.queues.first_offset = first_offset  # type: ignore[method-assign]
    body, found, at = bench.one().body, [], 0
    while at < len(body):
        message, _, size = decode(body, at)
        found.append(message.prepared_offset)
        at += size
    assert found == [one.offset - 10 * one.half_index for one in entries]
    assert asked == [entries[at].offset for at in (0, 3, 5)]


def test_bytes_are_bounded_more_tightly_while_peers_do_not_read() -> None:
    bench = Bench()
    for _ in range(8):
        bench.message(bytes(50_000))
    assert len(bodies(bench.one())) == 5, "256 KiB"
    assert len(bodies(bench.one(messages_max=33))) == 8
    assert len(bodies(bench.one(bytes_max=1))) == 1, "the first always fits"
    bench.outgoing.near_limit = True
    assert len(bodies(bench.one(messages_max=33))) == 1
    bench.outgoing.over_limit = True
    answer = bench.one(wait_ms=9_000)
    assert (answer.status, answer.next_offset) == (Status.NO_MATCH, 0), "it is not parked, and asks again"


def test_damage_is_named_at_its_place_and_messages_before_it_leave(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.message(b"whole")
    bench.queues.damaged.add(bench.message(b"damaged"))
    assert bodies(bench.one()) == [b"whole"]
    for _ in range(2):
        pulled = bench.one(queue_offset=1, wait_ms=9_000)
        assert (pulled.status, pulled.next_offset) == (Status.UNREADABLE, 1)
        assert "topic T queue 0: the message at offset 1 cannot be read" in pulled.text
    assert sum("offset 1 cannot be read" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("changes", [{"offset": 1 << 40}, {"message_bytes": 9}], ids=["no message", "another size"])
def test_an_entry_that_refers_to_no_message_of_its_size_is_damage_and_not_skipped(changes: dict[str, int]) -> None:
    bench = Bench()
    for number in range(4):
        bench.message(b"%d" % number)
    entries = bench.queues._queues[bench.topic, 0]
    entries[2] = entries[2]._replace(**changes)
    assert bodies(bench.one()) == [b"0", b"1"]
    damaged = bench.one(queue_offset=2, wait_ms=9_000)
    assert (damaged.status, damaged.next_offset, "store verify" in damaged.text) == (Status.UNREADABLE, 2, True)
    assert bodies(bench.one(queue_offset=3)) == [b"3"]
    entries[2] = entries[2]._replace(offset=1 << 40, visible_at=-1)
    assert bodies(bench.one()) == [b"0", b"1", b"3"], "it was trimmed meanwhile"


# --- waiting --------------------------------------------------------------------------------------------------------


def test_a_parked_pull_is_answered_by_a_message_that_it_wants() -> None:
    bench = Bench()
    answers = bench.ask(wait_ms=9_000)
    bench.wake()
    assert (answers, bench.pulls.held) == ([], 1), "nothing new: it stays parked"
    bench.message(b"new")
    bench.wake()
    assert bodies(answers[0]) == [b"new"]
    assert (bench.pulls.held, bench.pulls.has_held, bench.loop.waits) == (0, False, 0)


def test_a_wait_is_cut_below_what_a_java_client_waits_itself() -> None:
    bench = Bench()
    answers = bench.ask(wait_ms=1 << 40)
    bench.loop.pass_s(limits.PULL_SUSPEND_MAX_MS / 1_000 - 1)
    assert answers == []
    bench.loop.pass_s(1)
    assert answers[0].status is Status.NOTHING_NEW
    assert bench.flushed == 1, "no request is behind that answer: somebody must let it out"


def test_what_a_full_peer_missed_comes_when_it_reads_again() -> None:
    bench, peer = Bench(), FakePeer()
    answers = bench.ask(peer, wait_ms=9_000)
    peer.is_full = True
    bench.message(b"new")
    bench.wake()
    bench.pulls.drained(FakePeer(2))
    assert answers == []
    peer.is_full = False
    bench.pulls.drained(peer)
    assert bodies(answers[0]) == [b"new"]


def test_time_that_is_up_gives_a_full_peer_no_messages() -> None:
    bench, peer = Bench(), FakePeer()
    answers = bench.ask(peer, wait_ms=9_000)
    peer.is_full = True
    bench.message(b"new")
    bench.loop.pass_s(9)
    (pulled,) = answers
    assert (pulled.status, pulled.next_offset, pulled.max_offset, pulled.body) == (Status.NOTHING_NEW, 0, 1, b"")


def test_parked_pulls_of_one_peer_and_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 2)
    bench = Bench()
    answers = [bench.ask(wait_ms=9_000) for _ in range(3)]
    assert [len(one) for one in answers] == [0, 0, 1]
    monkeypatch.setattr(limits, "HELD_BYTES_MAX", 3_000)
    assert bench.ask(FakePeer(2), wait_ms=9_000) == []
    assert [len(one) for one in answers] == [1, 0, 1], "who waits longest is told that nothing is new"
    assert (bench.pulls.held, bench.pulls.held_bytes) == (2, 2_048)


def test_at_the_bound_the_oldest_pulls_of_one_that_has_more_than_its_share_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else who pulls more often than others is the only one that waits for messages."""
    monkeypatch.setattr(limits, "HELD_BYTES_MAX", 8 * 1_024)
    bench = Bench()
    shop = [bench.ask(FakePeer(1, user="shop"), wait_ms=9_000) for _ in range(2)]
    flood = [bench.ask(FakePeer(2 + number % 3, user="flood"), wait_ms=9_000) for number in range(20)]
    assert [len(one) for one in shop] == [0, 0]
    assert bench.pulls.held <= 8
    answered = [len(one) for one in flood]
    assert answered == sorted(answered, reverse=True), "the oldest ones"
    assert sum(answered) >= 14
    # Where nobody has more than its share, it is the oldest one, whoever that is.
    for number in range(10, 14):
        bench.ask(FakePeer(number, user=f"other-{number}"), wait_ms=9_000)
    assert [len(one) for one in shop] == [1, 1]


def test_a_pull_takes_any_filter_by_its_attributes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        tag_hashes = frozenset({1, 3})
        memory_bytes = 7

    monkeypatch.setattr(module, "parse_filter", lambda expression, kind: Other())
    bench = Bench()
    answers = bench.ask(wait_ms=9_000)
    assert bench.pulls.held_bytes == 1_024 + 7
    for number in range(5):
        bench.message(b"%d" % number, tag_hash=number)
    bench.wake()
    assert bodies(answers[0]) == bodies(bench.one()) == [b"1", b"3"]
    assert bench.pulls.held_bytes == 0


def test_nothing_is_kept_of_the_expression_or_of_a_peer_that_left() -> None:
    bench, peer = Bench(), FakePeer(3)
    bench.ask(peer, wait_ms=9_000, subscription="A || " * 1_000, expression_type="TAG")
    ((parked,),) = [list(there.values()) for there in bench.pulls._held.values()]
    assert (parked.request.subscription, parked.request.expression_type) == (None, "")
    bench.ask(peer, wait_ms=9_000)
    peer.is_full = True
    bench.message()
    bench.wake()
    assert bench.pulls._missed == {3}
    bench.pulls.peer_gone(3)
    assert bench.pulls._missed == set()
    assert (bench.pulls.held, bench.pulls.held_bytes, bench.loop.waits) == (0, 0, 0)
    assert bench.pulls._oldest == bench.pulls._of_peer == {}


def test_many_parked_pulls_of_a_queue_look_again_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WOKEN_MAX", 2)
    bench = Bench()
    answers = [bench.ask(wait_ms=9_000) for _ in range(5)]
    bench.message()
    bench.wake()
    counts = [sum(map(len, answers))]
    while bench.loop.turn():
        counts.append(sum(map(len, answers)))
    assert counts == [2, 4, 5]
    assert bench.flushed == 3


def test_a_broker_that_drains_answers_who_waits_and_parks_nobody() -> None:
    bench = Bench()
    waiting = bench.ask(wait_ms=9_000)
    bench.pulls.drain()
    assert waiting[0].status is Status.NOTHING_NEW
    assert bench.one(wait_ms=9_000).status is Status.NOTHING_NEW
    assert isinstance(bench.one(group="no way", wait_ms=9_000), Refused)
