"""Every durable thing has one form as bytes, in bases and in snapshots, and comes back from it as it was."""

import msgspec
import pytest
from tests.support.core_log import CoreLog, half, half_batch, part, sent, winner
from tests.support.invariants import check
from tests.unit.core.test_snapshot import filled

from halfmq import limits
from halfmq.core.base import base_payload
from halfmq.core.base_bytes import group_bytes, more_group_bytes, topic_bytes
from halfmq.core.commands import (
    Actor,
    DecideBatch,
    LockQueues,
    RequestedVerdict,
    ResolveTransaction,
    SetGroup,
    SetProducer,
    SetSetting,
    SetTopic,
    SetUser,
    TakeEpoch,
)
from halfmq.core.decision import BatchDecided, Done, EpochTaken, ProducerSettingsStored, UserIsSet
from halfmq.core.schema import (
    ROW_KINDS,
    Head,
    TopicRow,
    group_payload,
    read_group,
    read_topic,
    topic_payload,
    topic_set,
)
from halfmq.core.snapshot import snapshot_rows
from halfmq.core.state import State, Topic, holders_bytes
from halfmq.errors import InvariantViolated
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import PARKED_MS
from halfmq.model.settings import BrokerSettings, GroupSettings, PastLimit, ProducerSettings
from halfmq.model.users import User, UserSecret

ROOT = User((UserSecret(b"sealed"),), "", ("administer:broker",))


def full() -> CoreLog:
    """Something of every kind."""
    log = filled()
    log.begin_epoch()
    log.do(LockQueues("CG", "me", (("orders", 0), ("orders", 1))))
    assert log.do(SetTopic("labelled", 2, 1, 6, ordered=True, message_type="FIFO")) == Done()
    assert log.do(SetGroup("told", broadcast_enabled=False, notifies_members=False)) == Done()
    assert isinstance(
        log.do(SetProducer(ProducerSettings("G1", 3, PastLimit.ROLLBACK, 60_000))), ProducerSettingsStored
    )
    found = [half_batch(index=index, size=7_000) for index in range(6)]
    for command in found:
        sent(log.do(command))
        log.roll()
    batch = QueryBatch("q1", 0, "r1")
    assert isinstance(log.do(DecideBatch(1, "PG", batch, b"d" * 16, (winner(*found),))), BatchDecided)
    sent(log.do(half_batch(batch._replace(batch=1, run="r2"))))
    assert log.do(TakeEpoch("G1", "transfers", "one")) == EpochTaken(1)
    sent(
        log.do(
            half(
                "of a coordinator".replace(" ", "-"),
                group="G1",
                HMQ_COORDINATOR="1 transfers",
                HMQ_TX_ID="T-c",
                HMQ_TX_INDEX="0",
                HMQ_TX_COUNT="1",
            )
        )
    )
    sent(log.do(part("forced", 0, 1, HMQ_TX_MARKER="7.5")))
    log.do(ResolveTransaction("PG", "forced", RequestedVerdict.ROLLBACK, "ada"))
    assert log.do(SetUser("root", ROOT, True, None)) == UserIsSet()
    assert log.do(SetSetting("queries_max", 9, log.settings.queries_max, Actor("ada", "", ""))) == Done()
    log.roll()
    log.restore()
    return log


def test_rows_that_were_loaded_give_the_same_rows() -> None:
    """Each kind through its bytes and back, one after the other; the state is whole at the end."""
    log = full()
    state = State(log.settings)
    for kind in ROW_KINDS:
        rows = kind.rows(log.state)
        assert rows, f"nothing of kind {kind.name} is compared"
        encoded = msgspec.msgpack.encode(rows)
        kind.load(state, msgspec.msgpack.Decoder(kind.type).decode(encoded))
    state.loaded = True
    for kind in ROW_KINDS:
        if kind.name != "sent":  # the connection that sent it is forgotten
            loaded, live = [sorted(map(msgspec.msgpack.encode, kind.rows(one))) for one in (state, log.state)]
            assert loaded == live, kind.name
    check(state)


def test_what_a_base_and_a_snapshot_both_hold_is_the_same_bytes() -> None:
    log = full()
    base = msgspec.msgpack.decode(base_payload(log.state))
    rows = dict(snapshot_rows(log.state).rows)
    (head,) = rows["head"]
    assert base[1:4] == [head.epoch, head.next_topic_id, head.next_half_index]
    assert sorted(map(tuple, base[4])) == sorted((row.payload, row.ends) for row in rows["topics"])
    assert (sorted(base[5]), base[7], base[8]) == (sorted(rows["groups"]), rows["producers"], rows["immunity"][0])
    assert msgspec.msgpack.encode(base[6]) == msgspec.msgpack.encode(rows["offsets"])


def test_the_head_of_a_snapshot_is_numbers_of_the_state() -> None:
    state = CoreLog(BrokerSettings(segment_bytes=65_536)).state
    assert all(isinstance(getattr(state, field), int) for field in Head._fields)


def test_a_parked_check_that_names_no_reason_is_refused() -> None:
    log = CoreLog()
    log.do(half("T1"))
    (kind,) = [kind for kind in ROW_KINDS if kind.name == "undecided"]
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(kind.rows(log.state)[0]))
    row[-3] = PARKED_MS + 9
    rows = msgspec.msgpack.Decoder(kind.type).decode(msgspec.msgpack.encode([row]))
    with pytest.raises(InvariantViolated, match="reason 9"):
        kind.load(State(log.settings), rows)


def test_holders_of_queues_stand_after_the_settings_of_their_group_and_only_if_there_are_any() -> None:
    group = GroupSettings("CG")
    plain = msgspec.msgpack.encode(("CG", 16, 1, True))
    assert group_payload(group) == group_payload(group, {}) == plain
    holders = {(3, 1): "b", (2, 0): "b", (3, 0): "a"}
    with_holders = group_payload(group, holders)
    assert with_holders == msgspec.msgpack.encode(("CG", 16, 1, True, [("a", [3, 0]), ("b", [2, 0, 3, 1])]))
    assert with_holders == group_payload(group, dict(reversed(holders.items())))
    assert len(with_holders) - len(plain) <= holders_bytes(holders)
    state = CoreLog().state
    read_group(state, with_holders)
    assert (state.holders, state.derived.holders_bytes) == ({"CG": holders}, holders_bytes(holders))
    read_group(state, plain)
    assert (state.holders, state.derived.holders_bytes) == ({}, 0)


def test_what_a_group_holds_stands_after_the_holders_and_only_if_there_is_any() -> None:
    group = GroupSettings("CG", hold_topics=("orders", "stock"), hold_ms=7)
    assert group_payload(GroupSettings("CG")) == msgspec.msgpack.encode(("CG", 16, 1, True))
    held = group_payload(group)
    assert held == msgspec.msgpack.encode(("CG", 16, 1, True, [], (("orders", "stock"), 7)))
    both = group_payload(group, {(2, 0): "b"})
    assert both == msgspec.msgpack.encode(("CG", 16, 1, True, [("b", [2, 0])], (("orders", "stock"), 7)))
    state = CoreLog().state
    empty = state.derived.base_bytes
    for payload, holders in ((held, {}), (both, {"CG": {(2, 0): "b"}})):
        read_group(state, payload)
        assert (state.groups["CG"], state.holders) == (group, holders)
        assert state.derived.base_bytes == empty + group_bytes("CG") + more_group_bytes(group)
    read_group(state, group_payload(GroupSettings("CG")))
    assert state.derived.base_bytes == empty + group_bytes("CG")


def test_a_hold_takes_at_most_what_is_counted_for_it() -> None:
    for count in (1, 3, 15, 16, 64):
        group = GroupSettings("CG", hold_topics=("t" * 127,) * count, hold_ms=1 << 60)
        plain = group_payload(GroupSettings("CG"))
        assert len(group_payload(group)) - len(plain) <= more_group_bytes(group)


def test_rare_settings_of_a_group_stand_after_what_it_holds_and_only_if_one_is_not_the_default() -> None:
    state, empty = CoreLog().state, CoreLog().state.derived.base_bytes
    hold = ((), limits.HOLD_MS)
    cases = (
        (GroupSettings("CG", broadcast_enabled=False), {}, ([], hold, 1)),
        (
            GroupSettings("CG", from_min_enabled=False, notifies_members=False),
            {(2, 0): "b"},
            ([("b", [2, 0])], hold, 6),
        ),
        (GroupSettings("CG", hold_topics=("T",), hold_ms=7, from_min_enabled=False), {}, ([], (("T",), 7), 2)),
    )
    for group, holders, more in cases:
        payload = group_payload(group, holders)
        assert payload == msgspec.msgpack.encode(("CG", 16, 1, True, *more))
        assert len(payload) - len(group_payload(GroupSettings("CG"), holders)) <= more_group_bytes(group)
        read_group(state, payload)
        assert state.groups["CG"] == group
        assert state.derived.base_bytes == empty + group_bytes("CG") + more_group_bytes(group)


def test_labels_of_a_topic_stand_last_and_only_if_there_is_any() -> None:
    """A topic of an earlier version has none, and its bytes in a base stay as they were."""
    log = CoreLog()
    plain = msgspec.msgpack.encode((7, "T", 4, 3, 6))
    assert topic_set(0, 7, "T", 4, 3, 6).payload == plain
    labelled = topic_set(0, 7, "T", 4, 3, 6, ordered=True, message_type="FIFO").payload
    assert labelled == msgspec.msgpack.encode((7, "T", 4, 3, 6, True, "FIFO"))
    for payload, labels in ((plain, (False, "")), (labelled, (True, "FIFO")), (plain, (False, ""))):
        topic = read_topic(log.state, payload)
        assert (topic.ordered, topic.message_type) == labels
        assert topic_payload(topic) == payload
        check(log.state)


@pytest.mark.parametrize("message_type", ["", "F", "T" * limits.MESSAGE_TYPE_CHARS_MAX])
def test_a_topic_with_the_largest_numbers_takes_at_most_what_is_counted_for_it(message_type: str) -> None:
    settings = BrokerSettings()
    topic = Topic(settings, 1 << 60, "t" * 127, 1, 1, 7)
    topic.resize(settings, limits.QUEUES_PER_TOPIC_MAX, limits.QUEUES_PER_TOPIC_MAX)
    topic.ordered, topic.message_type = True, message_type
    topic.ends[:] = [1 << 60] * len(topic.ends)
    row = msgspec.msgpack.encode(TopicRow(topic_payload(topic), topic.ends, []))
    assert len(row) <= topic_bytes(topic)
