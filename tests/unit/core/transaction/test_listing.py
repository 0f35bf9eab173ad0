"""What is undecided, the oldest first; where an id is known."""

import msgspec
import pytest
from tests.support.core_log import CoreLog, end, half, half_batch, part, producer

from halfmq.core.commands import RequestedVerdict, SetProducer
from halfmq.core.state import InFlight, ProducerGroup, State, Undecided
from halfmq.core.transaction import listing
from halfmq.core.transaction.listing import (
    group_stats,
    groups_from,
    has,
    number_of_messages,
    oldest_undecided,
    transaction_state,
    undecided_among,
)
from halfmq.model.pending import PendingTransaction
from halfmq.model.settings import PastLimit, ProducerSettings


def test_the_oldest_come_first_over_all_groups_and_are_counted() -> None:
    log = CoreLog()
    for number in range(5):
        log.do(half(f"T{number}", group="even" if number % 2 == 0 else "odd", topic="orders"))
        log.later(1_000)
    log.session(producer(1, log.now_ms, "odd"))
    total, listed = oldest_undecided(log.state, "", 3, log.now_ms)
    assert total == 5
    assert [(one.tx_id, one.group, one.age_ms, one.producers) for one in listed] == [
        ("T0", "even", 5_000, 0), ("T1", "odd", 4_000, 1), ("T2", "even", 3_000, 0),
    ]  # fmt: skip
    assert (listed[0].topics, listed[0].messages, listed[0].expected, listed[0].checks) == (("orders",), 1, 1, 0)
    assert listed[0].next_check_in_ms == 1_000
    total, listed = oldest_undecided(log.state, "odd", 100, log.now_ms)
    assert (total, [one.tx_id for one in listed]) == (2, ["T1", "T3"])
    assert oldest_undecided(log.state, "nobody", 100, log.now_ms) == (0, ())


def test_a_transaction_keeps_its_place_when_it_is_asked_about() -> None:
    log = CoreLog()
    log.session(producer(1, log.now_ms))
    log.do(half("T1"))
    log.later(100)
    log.do(half("T2"))
    log.checks_after(20_000)
    _, listed = oldest_undecided(log.state, "", 1, log.now_ms)
    assert [one.tx_id for one in listed] == ["T1"]
    assert listed[0].checks >= 1


def test_where_an_id_is_known_and_how_it_stands() -> None:
    log = CoreLog()
    for group in ("one", "two"):
        reply = log.do(half("T1", group=group))
    groups = log.state.producer_groups
    assert [group.name for group in groups.values() if has(group, "T1")] == ["one", "two"]
    log.do(end("T1", reply, RequestedVerdict.ROLLBACK, group="two"))
    assert has(groups["two"], "T1"), "its verdict is known"
    assert [transaction_state(log.state, group, "T1") for group in ("one", "two", "three")] == [
        "UNDECIDED", "ROLLED_BACK", "UNKNOWN",
    ]  # fmt: skip
    assert transaction_state(log.state, "one", "T2") == "UNKNOWN"
    assert not has(groups["one"], "T2")


def test_which_of_some_ids_are_undecided_in_a_group() -> None:
    log = CoreLog()
    log.do(half("T1", group="one"))
    log.do(half("T2", group="two"))
    log.do(end("T3", log.do(half("T3", group="one")), group="one"))
    one, two = log.state.producer_groups.values()
    assert list(undecided_among(one, ["T9", "T2", "T3", "T1"])) == ["T1"]
    assert list(undecided_among(two, ["T9", "T2", "T3", "T1"])) == ["T2"]
    assert list(undecided_among(two, ["T2"])) == ["T2"], "however many of either there are"
    assert list(undecided_among(one, [])) == []


def test_each_figure_of_a_transaction_and_what_is_missing() -> None:
    log = CoreLog()
    log.session(producer(1, log.now_ms))
    log.do(part("T1", 0, topic="orders"))
    log.do(part("T1", 1, topic="stock"))
    log.do(part("T1", 2, topic="orders"))
    group = log.state.producer_groups["PG"]
    assert number_of_messages(group.undecided["T1"]) == (3, 0)
    group.session.pollers[7] = "poller"
    log.later(250)
    _, (listed,) = oldest_undecided(log.state, "PG", 10, log.now_ms)
    size = sum(one.message_bytes for one in group.undecided["T1"].halves)
    assert msgspec.structs.astuple(listed) == (
        "PG",
        "T1",
        250,
        3,
        0,
        size,
        ("orders", "stock"),
        0,
        5_750,
        2,
        *[""] * 6,
        0,
    )
    topic_id = group.undecided["T1"].halves[1].topic_id
    del log.state.topics_by_id[topic_id]
    log.now_ms -= 300
    _, (listed,) = oldest_undecided(log.state, "PG", 10, log.now_ms)
    assert (listed.topics, listed.age_ms) == (("orders", f"topic id {topic_id}"), 0), "a clock that went back"
    log.later(60_000)
    assert oldest_undecided(log.state, "PG", 10, log.now_ms)[1][0].next_check_in_ms == 0


def test_what_was_parked_says_why_has_no_next_check_and_is_still_undecided() -> None:
    """An operator may have it asked about any day, so its marker must stay: ``MarkerTable.prune`` goes by this."""
    log = CoreLog()
    log.do(SetProducer(ProducerSettings("PG", 0, PastLimit.WAIT, 60_000)))
    log.do(half("T1"))
    log.run_to(log.now_ms + 70_000)
    _, (listed,) = oldest_undecided(log.state, "PG", 10, log.now_ms)
    assert (listed.parked, listed.next_check_in_ms) == ("age", 0)
    (stats,) = group_stats(log.state, "PG", log.now_ms)
    assert (stats.undecided, stats.parked) == (1, 1)
    assert list(undecided_among(log.state.producer_groups["PG"], ["T1", "T2"])) == ["T1"]
    assert transaction_state(log.state, "PG", "T1") == "UNDECIDED"


def test_as_many_are_listed_as_were_asked_for_over_all_groups() -> None:
    log = CoreLog()
    for number in range(6):
        log.do(half(f"T{number}", group=f"G{number % 2}"))
    assert [(one.group, one.tx_id) for one in oldest_undecided(log.state, "", 4, log.now_ms)[1]] == [
        ("G0", "T0"), ("G0", "T2"), ("G0", "T4"), ("G1", "T1"),
    ]  # fmt: skip


def test_each_figure_of_a_group() -> None:
    log = CoreLog()
    log.do(half("T0", group="few"))
    log.session(producer(1, log.now_ms))
    replies = []
    for number in range(4):
        replies.append(log.do(half(f"T{number}")))
        log.later(1_000)
    group = log.state.producer_groups["PG"]
    log.do(end("T0", replies[0]))
    log.later(500)
    log.do(end("T1", replies[1], RequestedVerdict.ROLLBACK))
    log.later(250)
    group.session.pollers[7] = "poller"
    group.session.in_flight["T2"] = InFlight(log.now_ms + 5_000, 1)
    first, second = group_stats(log.state, "", log.now_ms)
    assert (first.group, second.group) == ("PG", "few"), "the ones with most undecided first"
    assert (first.undecided, first.oldest_ms, first.message_bytes) == (2, 2_750, group.derived.bytes)
    assert (first.undecided_max, first.message_bytes_max) == (group.undecided_max, group.undecided_bytes_max)
    assert (first.parked, first.in_flight, first.producers) == (0, 1, 2)
    assert (first.committed, first.rolled_back, first.counted_ms) == (1, 1, 750)
    assert (first.check_limit, first.past_limit, first.skip_age_ms, first.set_by) == (0, "wait", 0, "")
    assert (second.committed, second.rolled_back, second.oldest_ms) == (0, 0, 4_750)
    assert [one.group for one in group_stats(log.state, "few", log.now_ms)] == ["few"]
    log.do(SetProducer(ProducerSettings("few", 3, PastLimit.ROLLBACK, 60_000, set_by="ada")))
    (few,) = group_stats(log.state, "few", log.now_ms)
    assert (few.check_limit, few.past_limit, few.skip_age_ms, few.set_by) == (3, "rollback", 60_000, "ada")


def test_figures_of_nothing() -> None:
    log = CoreLog()
    assert group_stats(log.state, "", log.now_ms) == ()
    log.do(end("T1", log.do(half("T1"))))
    (stats,) = group_stats(log.state, "", log.now_ms)
    assert (stats.undecided, stats.oldest_ms, stats.committed, stats.counted_ms) == (0, 0, 1, 0)


def test_a_count_looks_at_a_bounded_number_of_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    log = CoreLog()
    for number in range(5):
        wanted = RequestedVerdict.ROLLBACK if number < 2 else RequestedVerdict.COMMIT
        log.do(end(f"T{number}", log.do(half(f"T{number}")), wanted))
        log.later(100)
    (stats,) = group_stats(log.state, "PG", log.now_ms)
    assert (stats.committed, stats.rolled_back, stats.counted_ms) == (3, 2, 500)
    monkeypatch.setattr(listing, "_VERDICTS_LOOKED_AT_MAX", 2)
    (stats,) = group_stats(log.state, "PG", log.now_ms)
    assert (stats.committed, stats.rolled_back, stats.counted_ms) == (2, 0, 200), "the newest ones"


def test_a_transaction_prepared_now_is_0_ms_old() -> None:
    log = CoreLog()
    log.do(half("T1"))
    assert group_stats(log.state, "PG", log.now_ms)[0].oldest_ms == 0
    assert group_stats(log.state, "PG", log.now_ms - 5)[0].oldest_ms == 0, "a clock that went back"
    assert oldest_undecided(log.state, "PG", 1, log.now_ms)[1][0].age_ms == 0


def test_no_more_than_asked_for_is_looked_at_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    listed = listing._listed

    def counting(state: State, group: ProducerGroup, known: Undecided, now_ms: int) -> PendingTransaction:
        looked_at.append(known.tx_id)
        return listed(state, group, known, now_ms)

    monkeypatch.setattr(listing, "_listed", counting)
    log = CoreLog()
    for number in range(20):
        log.do(half(f"T{number}", group=f"G{number % 2}"))
        log.later(1)
    total, found = oldest_undecided(log.state, "", 3, log.now_ms)
    assert (total, len(found)) == (20, 3)
    assert looked_at == ["T0", "T1", "T2"]


def test_pages_of_groups_show_each_once_also_while_others_come_and_go() -> None:
    log = CoreLog()
    for number in range(10):
        log.do(half(f"T{number}", group=f"G{number}"))
    seen: list[str] = []
    start = 0
    while True:
        page, start = groups_from(log.state, start, 4)
        assert 0 < len(page) <= 4
        seen += [group.name for group in page]
        if not start:
            break
        if len(seen) == 4:
            del log.state.producer_groups["G1"], log.state.producer_groups["G7"]
            log.do(half("T10", group="G10"))
    assert seen == ["G0", "G1", "G2", "G3", "G4", "G5", "G6", "G8", "G9", "G10"]
    assert groups_from(log.state, 0, 100)[1] == 0
    assert groups_from(CoreLog().state, 0, 4) == ([], 0)
    log.restart()
    assert len(groups_from(log.state, 0, 100)[0]) == 11
    page, _ = groups_from(log.state, 0, 2)
    assert [one.group for one in group_stats(log.state, "", log.now_ms, groups=page)] == ["G0", "G1"]
    assert [one.tx_id for one in oldest_undecided(log.state, "", 9, log.now_ms, groups=page)[1]] == ["T0", "T1"]


def test_a_page_of_one_group_begins_behind_the_first_ones() -> None:
    log = CoreLog()
    for number in range(5):
        log.do(half(f"T{number}"))
    total, rows = oldest_undecided(log.state, "PG", 2, log.now_ms, skipped=3)
    assert (total, [row.tx_id for row in rows]) == (5, ["T3", "T4"])
    assert oldest_undecided(log.state, "PG", 2, log.now_ms, skipped=5) == (5, ())


def test_messages_of_half_batches_are_counted() -> None:
    log = CoreLog()
    log.do(half_batch("T1", "", index=0, messages=40))
    log.do(half_batch(messages=7))
    known = log.state.producer_groups["PG"].undecided
    assert number_of_messages(known["T1"]) == (40, 0)
    log.do(half_batch("T1", "", index=1, count=2, messages=5))
    assert number_of_messages(known["T1"]) == (45, 45)
    assert number_of_messages(known["q1:0:r1"]) == (7, 0)
