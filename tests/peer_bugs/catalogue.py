"""The 23 published bugs: who had them, where it stands, which test is about it here, and how it is put back."""

from typing import Final, NamedTuple


class PeerBug(NamedTuple):
    """``plants``: (name in ``plants.PLANTS``, what the test says when it is there; a regular expression)."""

    peer: str
    what: str
    #: ``file::test`` in this directory.
    test: str
    promise: str
    plants: tuple[tuple[str, str], ...]

    @property
    def module(self) -> str:
        return self.test.partition("::")[0].removesuffix(".py")

    @property
    def function(self) -> str:
        return self.test.partition("::")[2]


_ONCE: Final = "test_verdict_is_write_once.py"
_HANDLES: Final = "test_handles_stay_good.py"
_CLIENTS: Final = "test_clients_say_what_they_know.py"
_MARKERS: Final = "test_markers_do_not_expire.py"
_CHECKS: Final = "test_checks_reach_somebody.py"
_WAITING: Final = "test_waiting_costs_nothing.py"
_CRASHES: Final = "test_crashes_take_nothing_back.py"

BUGS: Final = (
    PeerBug(
        "RocketMQ #5574",
        "a second COMMIT makes a second message",
        f"{_ONCE}::test_second_commit_gets_the_first_verdict_and_makes_no_second_message",
        "Agreement, once in the log",
        (("verdict_leaves_the_half_undecided", "one COMMIT, repeated, made [2-9] messages"),),
    ),
    PeerBug(
        "RocketMQ #8158, #2694",
        "COMMIT after ROLLBACK publishes, ROLLBACK after COMMIT is confirmed",
        f"{_ONCE}::test_opposite_verdict_is_refused_and_changes_nothing",
        "Agreement",
        (
            ("verdict_leaves_the_half_undecided", "first life: consumers see .*taken back"),
            ("opposite_verdict_is_answered_with_success", "first life: COMMIT after ROLLBACK was confirmed"),
        ),
    ),
    PeerBug(
        "RocketMQ #8158",
        "a verdict with the handle from before a re-check does not meet its half",
        f"{_HANDLES}::test_verdict_with_the_first_handle_settles_what_was_checked_and_moved_since",
        "Progress, agreement",
        (("moved_half_is_known_by_its_new_offset", "the first handle is no good any more"),),
    ),
    PeerBug(
        "RocketMQ #2117",
        "a crash before the op messages are flushed: checked and published again",
        f"{_CRASHES}::test_crash_right_after_the_answer_does_not_ask_or_publish_again",
        "Durable answers",
        (("answers_leave_before_the_sync", "an acknowledged verdict is gone"),),
    ),
    PeerBug(
        "RocketMQ proxy (TransactionDataManager)",
        "COMMIT after the gateway forgot the transaction",
        f"{_HANDLES}::test_commit_is_taken_from_anybody_who_has_the_handle_however_late",
        "Agreement, recovery",
        (("gateway_knows_a_transaction_until_its_first_end", "the gateway forgot the transaction"),),
    ),
    PeerBug(
        "JoyQueue (TransactionRecover)",
        "a restart deletes prepared transactions",
        f"{_CRASHES}::test_prepared_transactions_are_there_after_every_restart",
        "Never guess, recovery",
        (("restart_drops_prepared_transactions", "life 0: a restart lost"),),
    ),
    PeerBug(
        "JoyQueue (TransactionManager)",
        "a restart finds committed transactions undecided",
        f"{_CRASHES}::test_settled_transactions_are_settled_after_every_restart",
        "Recovery, once in the log",
        (("restart_finds_committed_transactions_undecided", "came back undecided"),),
    ),
    PeerBug(
        "JoyQueue (TransactionManager.commit)",
        "a COMMIT over several partition groups takes effect in part",
        f"{_CRASHES}::test_commit_over_several_queues_shows_all_or_nothing_wherever_it_is_cut",
        "All or none",
        (("commit_is_a_loop_over_the_queues", "a part of the transaction is visible"),),
    ),
    PeerBug(
        "RocketMQ #8311",
        "checks are counted while the transaction is immune",
        f"{_WAITING}::test_immune_transaction_is_neither_asked_nor_counted",
        "Never guess",
        (("immune_transactions_are_counted", "the first checks after the immunity are"),),
    ),
    PeerBug(
        "RocketMQ (AbstractTransactionalMessageCheckListener)",
        "checks are counted with nobody to ask",
        f"{_WAITING}::test_transaction_waits_for_its_producer_and_no_attempt_is_counted",
        "Never guess, progress",
        (("attempts_that_reach_nobody_are_counted", "attempts that reached nobody were counted"),),
    ),
    PeerBug(
        "RocketMQ (needSkip)",
        "an undecided half past retention is dropped",
        f"{_WAITING}::test_undecided_transaction_outlives_retention",
        "Retention, never guess",
        (
            ("undecided_transactions_expire", "given up by age"),
            ("trim_takes_undecided_halves_along", "asked with|did not outlive"),
        ),
    ),
    PeerBug(
        "RocketMQ #9640",
        "clocks of clients decide when a check is due, both ways",
        f"{_WAITING}::test_clocks_of_clients_move_no_check",
        "Time",
        (
            ("clients_clock_behind_is_believed", "asked while immune: .*clock-behind"),
            ("clients_clock_ahead_is_believed", "not asked though the immunity is over: .*clock-ahead"),
        ),
    ),
    PeerBug(
        "RocketMQ (DefaultTransactionalMessageCheckListener)",
        "the dead-letter write fails and the half is skipped all the same",
        f"{_WAITING}::test_full_disk_gives_up_nothing_and_counts_nothing",
        "Never guess, retention",
        (("half_whose_dead_letter_cannot_be_written_is_skipped", "given up, since a write failed"),),
    ),
    PeerBug(
        "RocketMQ (slave acting master)",
        "a half that cannot be moved is skipped after ten tries",
        f"{_WAITING}::test_half_that_cannot_be_moved_is_tried_for_ever_and_never_skipped",
        "Retention, never guess",
        (("half_that_cannot_be_moved_is_skipped_after_ten_tries", "the segment went"),),
    ),
    PeerBug(
        "RocketMQ #9500",
        "an exception in the scan loop keeps all others from being checked",
        f"{_CHECKS}::test_half_that_cannot_be_read_keeps_nobody_else_from_being_asked",
        "Progress",
        (
            ("damaged_half_ends_the_round_of_checks", "nobody is asked about"),
            ("damaged_half_stops_the_broker", "stopped the broker"),
        ),
    ),
    PeerBug(
        "RocketMQ #1694",
        "a check for a busy channel is dropped",
        f"{_CHECKS}::test_busy_connection_gets_its_checks_when_it_reads_again",
        "Progress, never guess",
        (("check_for_a_busy_connection_is_dropped", "the member that reads was asked about"),),
    ),
    PeerBug(
        "RocketMQ #1519",
        "the pool for checks is full and the check is lost",
        f"{_CLIENTS}::test_check_that_finds_no_room_is_asked_again_and_answered_once",
        "Progress, once in the log",
        (("check_without_an_answer_is_never_repeated", "a check that found no room is asked again"),),
    ),
    PeerBug(
        "RocketMQ #9791",
        "the wrong member of a producer group is asked, and answers",
        f"{_CLIENTS}::test_application_that_knows_the_transaction_is_asked",
        "Never guess, progress",
        (
            ("any_member_answers_for_the_group", "the wrong application answered for"),
            ("first_member_is_always_asked", "whoever knows is asked"),
        ),
    ),
    PeerBug(
        "RocketMQ #3885",
        "a slave that is down, or a slow flush, at prepare cancels every transaction",
        f"{_CLIENTS}::test_prepare_that_is_slow_to_be_safe_does_not_cancel_the_local_transaction",
        "Durable answers, once in the log",
        (("prepare_that_is_not_answered_in_time_is_rolled_back", "the local transaction did not run"),),
    ),
    PeerBug(
        "rocketmq-flink (InnerProducerImpl)",
        "a connector swallows the error of its COMMIT",
        f"{_CLIENTS}::test_commit_that_was_not_heard_is_not_reported_as_done",
        "Durable answers, agreement",
        (("committer_swallows_errors", "a refused COMMIT is reported as done"),),
    ),
    PeerBug(
        "rocketmq-clients, Python (producer.py)",
        "a checker that raises or returns nothing is not heard of",
        f"{_CLIENTS}::test_check_function_that_raises_or_returns_nothing_is_reported_and_asked_again",
        "Never guess, progress",
        (
            ("exception_of_a_checker_vanishes", "nobody was told"),
            ("checker_that_returns_nothing_means_rollback", "decided against the message"),
        ),
    ),
    PeerBug(
        "Seata (seata-go PR #1054, seata#3612)",
        '"finished", said of what is not known any more, is answered as ROLLBACK',
        f"{_MARKERS}::test_marker_of_an_undecided_transaction_is_not_cleaned_up",
        "Never guess",
        (
            (
                "old_markers_are_forgotten_whatever_their_state",
                "the order is committed, and its message was rolled back",
            ),
        ),
    ),
    PeerBug(
        "django-outbox-pattern (producers.py)",
        "a relay's row expires unsent",
        f"{_MARKERS}::test_message_of_a_committed_order_is_sent_after_any_outage",
        "Retention, progress",
        (("marker_expires_after_a_day", "the message of a committed order is sent"),),
    ),
)


def table() -> str:
    """The rows of README.md."""
    rows = ["| # | whose | what | test | promise | put back by |", "|---|---|---|---|---|---|"]
    for number, bug in enumerate(BUGS, 1):
        test = f"[`{bug.function}`]({bug.module}.py)"
        plants = ", ".join(f"`{plant}`" for plant, _ in bug.plants)
        rows.append(f"| {number} | {bug.peer} | {bug.what} | {test} | {bug.promise} | {plants} |")
    return "\n".join(rows)
