"""The history of one transaction in sentences: what happened, why it waits, who can settle it, who settled it.

For errors, the command line and HTTP. Times are broker time; durations are stated, so that nobody has to subtract.
"""

from itertools import islice
from typing import Final

from halfmq.core.commands import SettledRow
from halfmq.core.state import ProducerGroup, State, Undecided, Verdict
from halfmq.core.transaction.listing import number_of_messages, topics_of
from halfmq.core.transaction.past_limit import is_at_limit
from halfmq.core.transaction.states import by_whom, standing_state
from halfmq.model.durations import span
from halfmq.model.message_facts import HalfNotes
from halfmq.model.query_batch import QueryBatch, of_tx_id
from halfmq.model.records import DecidedBy, OperatorActed, ParkedBecause
from halfmq.model.settings import PastLimit, ProducerSettings

#: Maximum number of other groups that are searched for a transaction that the named group does not have, as a hint.
_GROUPS_EXAMINED_MAX: Final = 4_096

_ADVISED: Final = {"COMMIT": "commit", "ROLLBACK": "roll back"}


def story(
    view: State, group: str, tx_id: str, now_ms: int, *, row: SettledRow | None = None, looked: str = "",
    acted: OperatorActed | None = None, notes: HalfNotes | None = None, settled_by: str = "",
) -> tuple[str, ...]:  # fmt: skip
    """Sentences about the transaction, in the order of events. The last one says what it is waiting for, if anything.

    ``row``: its row in the transaction table, if it is no longer in memory; ``looked``: else, how it was searched for.
    ``acted``: the log's record of the operator who settled it.
    ``notes``: of its first half, if it is undecided. ``settled_by``: the user in its verdict.
    """
    producers = view.producer_groups.get(group)
    if producers is not None and (known := producers.undecided.get(tx_id)) is not None:
        return (
            *_prepared(view, known, now_ms),
            *_noted(notes or HalfNotes()),
            *_checks(producers, known, now_ms),
            _waits(view, producers, known, now_ms),
        )
    if producers is not None and (verdict := producers.settled.get(tx_id)) is not None:
        return (_settled(verdict, now_ms, acted, settled_by), *_compared(view, group, tx_id, now_ms))
    if row is not None:
        halves = tuple(range(row.halves))
        at_ms = row.settled_at_ms
        return (
            _settled(
                Verdict(group, tx_id, row.committed, row.verdict_position, at_ms, halves, (), row.decided_by),
                now_ms,
                acted,
                settled_by,
            ),
            *_compared(view, group, tx_id, now_ms),
        )
    elsewhere = [
        other.name
        for other in islice(view.producer_groups.values(), _GROUPS_EXAMINED_MAX)
        if tx_id in other.undecided or tx_id in other.settled
    ]
    if elsewhere:
        return (f"Transaction {tx_id} is not of producer group {group} but of {' and '.join(elsewhere)}.",)
    of_group = f" of producer group {group}" if group else ""
    looked = looked or (
        "It was settled longer ago, when the transaction table may still know it, or it was never prepared here."
    )
    return (f"Transaction {tx_id}{of_group} is not undecided, and not among the recent verdicts. {looked}",)


def check_is_open(view: State, group: str, tx_id: str, now_ms: int) -> bool:
    """A check of the undecided transaction was sent, or is due and a producer is there to get it: an answer may come soon."""
    producers = view.producer_groups.get(group)
    known = producers.undecided.get(tx_id) if producers is not None else None
    if producers is None or known is None or known.parked:
        return False
    asked = producers.session.in_flight.get(tx_id)
    if asked is not None and asked.until_ms > now_ms:
        return True
    return known.next_check <= now_ms and bool(producers.session.members or producers.session.pollers)


def _prepared(view: State, known: Undecided, now_ms: int) -> tuple[str, ...]:
    first = known.halves[0]
    size = sum(half.message_bytes for half in known.halves)
    messages, expected = number_of_messages(known)
    said = f"{messages} of {expected}" if expected else f"{messages}, and their total is not known yet,"
    if first.batch is not None:
        said = f"{messages} messages in {len(known.halves)} half batches"
    sentences = [
        f"Transaction {known.tx_id} was prepared by producer group {known.group}{_by_user(known.user)} {span(now_ms - known.prepared_at_ms)} ago.",
        f"It has {said}{'' if first.batch is not None else ' messages'} for {', '.join(topics_of(view, known))}, {size} bytes; its first half is number {first.half_index}, "
        f"prepared at log offset {first.first_offset}.",
    ]
    if first.offset != first.first_offset:
        sentences.append(f"Its first half was copied forward to log offset {first.offset}.")
    if first.batch is not None and first.attempt:
        query, number, run = of_tx_id(known.tx_id)
        batch = QueryBatch(query, number, run, first.batch.query_topic)
        sentences.append(
            f"It is {batch.text}, run {run}, which its query commits by a decision; it can be rolled back, and "
            "then the query must be started again."
        )
    elif known.count != len(known.halves):
        sentences.append("It cannot be committed before the missing messages arrive; it can be rolled back.")
    return tuple(sentences)


def _noted(notes: HalfNotes) -> tuple[str, ...]:
    advice = f"Its application advises: if in doubt, {_ADVISED[notes.advice]}." if notes.advice else ""
    comment = f"Comment: {notes.comment}{'' if notes.comment[-1:] in '.!?' else '.'}" if notes.comment else ""
    branch = f"Its coordinator calls it {notes.branch}." if notes.branch else ""
    said = " ".join(filter(None, (branch, advice, comment)))
    return (said,) if said else ()


def _checks(group: ProducerGroup, known: Undecided, now_ms: int) -> tuple[str, ...]:
    sentences = []
    if known.checks:
        sentences.append(f"Its producer group got {checks(known.checks)}.")
    else:
        sentences.append("No check was sent yet.")
    if group.policy is not None and not known.parked:
        sentences += _policy(group.policy.settings)
    last_unknown = group.session.last_unknown.get(known.tx_id)
    if last_unknown is not None:
        said = f", with the remark: {last_unknown.remark}" if last_unknown.remark else ""
        sentences.append(f"The last response came {span(now_ms - last_unknown.at_ms)} ago and was UNKNOWN{said}.")
    return tuple(sentences)


#: What happens at the check limit. There is none with WAIT.
_THEN: Final = {PastLimit.ROLLBACK: "is rolled back", PastLimit.PARKED: "is parked"}


def _policy(settings: ProducerSettings) -> list[str]:
    sentences = []
    if settings.check_limit:
        sentences.append(
            f"The policy of its group says that it {_THEN[settings.past_limit]} after {checks(settings.check_limit)} without a verdict."
        )
    if settings.skip_age_ms:
        sentences.append(f"The policy of its group parks it when it is {span(settings.skip_age_ms)} old.")
    return sentences


def _waits(view: State, group: ProducerGroup, known: Undecided, now_ms: int) -> str:
    if known.coordinator is not None:
        return _waits_for_coordinator(view, known)
    if known.parked is ParkedBecause.RESTORED:
        return (
            "It was undecided when this store was restored from a backup, and was to be rolled back since: it may have been committed after "
            "the backup, so no further checks are sent automatically, and an operator decides. COMMIT is accepted from its producer, too."
        )
    if known.parked:
        why = f"it had {checks(known.checks)}" if known.parked is ParkedBecause.CHECKS else "of its age"
        return (
            f"The policy of group {group.name} parked it because {why}: no further checks are sent automatically. It is still "
            "undecided; its producer or an operator can settle it, and `halfmq tx check` sends a check."
        )
    if now_ms < known.grace_until_ms:
        return f"It is undecided and in its grace period: no check is sent for another {span(known.grace_until_ms - now_ms)}."
    asked = group.session.in_flight.get(known.tx_id)
    if asked is not None and asked.until_ms > now_ms:
        name = group.session.members.get(asked.connection) or group.session.pollers.get(
            asked.connection, f"connection {asked.connection}"
        )
        return f"It waits for the response of {name}, for another {span(asked.until_ms - now_ms)}; then {_what_then(group, known)}."
    if not (group.session.members or group.session.pollers):
        return (
            f"It waits because no producer of group {group.name} is connected; one that connects gets a check at once, and an "
            "operator can decide."
        )
    if known.next_check > now_ms:
        in_time = span(known.next_check - now_ms)
        if is_at_limit(group.policy, known):
            return (
                f"It had the maximum number of checks of its group's policy: in {in_time} {_what_then(group, known)}."
            )
        return f"The next check is due in {in_time}."
    if len(group.session.in_flight) >= view.settings.checks_in_flight_max:
        return f"Its check is due, after {len(group.session.in_flight)} checks of its group that await responses."
    if not (group.session.members or group.session.held_polls):
        return f"It is due, and goes to the next client that fetches the checks of group {group.name}."
    return "Its check is due now."


def _waits_for_coordinator(view: State, known: Undecided) -> str:
    coordinator = known.coordinator
    assert coordinator is not None
    taken = view.coordinators.get((known.group, coordinator.name))
    since = ""
    if taken is not None and taken.epoch != coordinator.epoch:
        since = f" ({taken.taken_by or 'another process'} took over with epoch {taken.epoch})"
    return (
        f"It waits for its coordinator {coordinator.name}; it was prepared in epoch {coordinator.epoch}{since}. A check cannot settle it, and an "
        "operator can."
    )


def _what_then(group: ProducerGroup, known: Undecided) -> str:
    policy = group.policy
    if policy is None or not is_at_limit(policy, known):
        return "it is checked again"
    return f"it {_THEN[policy.settings.past_limit]}"


def _by_user(name: str) -> str:
    return f", by user {name}," if name else ""


def _settled(verdict: Verdict, now_ms: int, acted: OperatorActed | None, user: str) -> str:
    halves = verdict.half_indexes
    count = len(halves) if isinstance(halves, tuple) else 1
    by = by_whom(verdict.decided_by)
    if acted is not None and verdict.decided_by == DecidedBy.OPERATOR:
        by += f" ({acted.name or 'without a name'} from {acted.peer}; reason: {acted.reason or 'none given'})"
    if user:
        by += f", by user {user}"
    what = "its message" if count == 1 else f"its {count} messages"
    effect = f"{what} became visible at that position" if verdict.committed else f"{what}: never visible"
    if not count:  # a fence
        effect = "nobody had prepared it, and its messages are refused since then"
    return (
        f"Transaction {verdict.tx_id} of producer group {verdict.group} is {standing_state(verdict.committed).value} since "
        f"{span(now_ms - verdict.settled_at_ms)} ago, at log position {verdict.position}{by}; {effect}."
    )


def _compared(view: State, group: str, tx_id: str, now_ms: int) -> tuple[str, ...]:
    known = view.comparisons.get((group, tx_id))
    if known is None:
        return ()
    if known.is_finding:
        did = "rolled back" if known.committed else "committed"
        return (
            f"DAMAGE: {known.source} says that the local transaction {did}, reported {span(now_ms - known.found_at_ms)} ago. "
            "`halfmq tx forget` removes this finding when it is repaired.",
        )
    if known.half_offset >= view.log_start:
        return (
            "It will be compared with the marker table of its application as soon as a service of its group can read it.",
        )
    return (
        "It was not compared with the marker table of its application, and cannot be any more: its messages are past retention.",
    )


def checks(count: int) -> str:
    return "1 check" if count == 1 else f"{count} checks"
