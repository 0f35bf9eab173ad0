"""Verdicts that neither the application nor its marker gave, compared with what its database did: the damage that they may have done.

An operator, a policy or a coordinator may settle a transaction against its local outcome. So the marker is still read once that is
possible:

    verdict, of a transaction with a marker    -> Committed | RolledBack | Decided, then Compared(EXPECTED)
    whoever reads its marker reports           -> AGREES: forgotten. CONTRADICTS: a finding
    anybody reports another outcome            -> agrees: nothing. CONTRADICTS: a finding, also of a transaction that was not expected
    an operator                                -> FORGOTTEN, after the record that names him

A finding changes no verdict: the first one is final. The record EXPECTED repeats what the half says, since a redo may begin after the half,
as a trim allows, and must come to the same base.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import base_has_space, comparison_bytes, no_space
from halfmq.core.commands import Compare, ForgetDamage, SettledRow
from halfmq.core.decision import NOTHING, ComparisonMade, Decision, DecisionTuple, NotCompared, Refused, Why, refuse
from halfmq.core.schema import compared
from halfmq.core.state import Comparison, State, Undecided, Verdict, next_offset
from halfmq.core.transaction.states import TransactionState
from halfmq.model.ids import hash64
from halfmq.model.records import Committed, Compared, ComparisonResult, Decided, DecidedBy, OperatorAction, RolledBack

_TEXT_CHARS_MAX: Final = limits.GROUP_CHARS_MAX + limits.TRANSACTION_ID_CHARS_MAX
#: More than a record takes with the longest names.
COMPARED_BYTES_MAX: Final = 128 + _TEXT_CHARS_MAX + 4 * (limits.OPERATOR_CHARS_MAX + limits.COMPARISON_SOURCE_CHARS_MAX)
_HASH_MASK: Final = (1 << 64) - 1


def expected(
    state: State, known: Undecided, verdict: Committed | Decided | RolledBack, by: str, now_ms: int, *, before: int = 0
) -> tuple[Sequence[Compared], Sequence[NotCompared]]:  # fmt: skip
    """The record directly after the ``verdict`` on ``known``, or what to log instead; neither if no marker can say more.

    ``before``: records of the same decision, which the state does not count yet.
    """
    first = known.halves[0]
    if not first.has_marker:
        return (), ()
    is_committed = not isinstance(verdict, RolledBack)
    # A commit may have copied it forward.
    place = verdict.refs[0].offset if not isinstance(verdict, RolledBack) else first.offset
    comparison = Comparison(
        known.group, known.tx_id, is_committed, verdict.decided_by, by[: limits.OPERATOR_CHARS_MAX], place,
        known.prepared_at_ms, now_ms, 0,
    )  # fmt: skip
    count = len(state.comparisons) + before
    if count >= limits.COMPARISONS_MAX or not base_has_space(state, (1 + before) * comparison_bytes(comparison)):
        return (), (NotCompared(known.group, known.tx_id),)
    return (compared(verdict.offset + verdict.size, ComparisonResult.EXPECTED, comparison),), ()


def with_comparison(state: State, known: Undecided, decided: DecisionTuple, by: str, now_ms: int) -> DecisionTuple:
    """A decision that settles ``known``, with the record that its verdict is to be compared. Refusals stay as they are."""
    records, reply, effects, events, begins_segment = decided
    if not records:
        return decided
    verdict = records[-1]
    assert isinstance(verdict, Committed | Decided | RolledBack)
    more, missed = expected(state, known, verdict, by, now_ms)
    return (*records, *more), reply, (*effects, *missed), events, begins_segment


def decide_compare(state: State, command: Compare, now_ms: int) -> Decision:
    """Compare a reported local outcome with the verdict.

    Replies:
        ComparisonMade. A finding stays one, whoever reports what later.
        Refused STILL_UNDECIDED: there is no verdict yet. NOT_FOUND: not known here; the caller reads the transaction table, and repeats
            the command with the row. LIMIT_REACHED: a contradiction, and no space to remember it. Nothing was changed.
    """
    known = state.comparisons.get((command.group, command.tx_id))
    offset = next_offset(state)
    if known is None:
        return _compare_other(state, command, offset, now_ms)
    agrees = known.committed == command.committed
    if known.is_finding or (agrees and not command.is_marker):
        return Decision(NOTHING, _made(known, agrees))
    if agrees:
        return Decision((compared(offset, ComparisonResult.AGREES, known),), _made(known, True))
    return _found(command, known, offset, now_ms)


def _found(command: Compare, known: Comparison, offset: int, now_ms: int) -> Decision:
    source = command.source[: limits.COMPARISON_SOURCE_CHARS_MAX]
    finding = replace(known, source=source, found_at_ms=max(now_ms, 1))
    return Decision((compared(offset, ComparisonResult.CONTRADICTS, finding),), _made(finding, False, is_new=True))


def _made(known: Comparison, agrees: bool, *, is_new: bool = False) -> ComparisonMade:
    return ComparisonMade(known.group, known.tx_id, known.committed, known.decided_by, known.by, agrees, is_new)


def _compare_other(state: State, command: Compare, offset: int, now_ms: int) -> Decision:
    """Of a transaction that nobody expects a comparison of: settled by its own application, or already compared."""
    group_name, tx_id = command.group, command.tx_id
    group = state.producer_groups.get(group_name)
    if group is not None and tx_id in group.undecided:
        text = f"transaction {tx_id!r} is undecided: there is no verdict to compare with yet"
        return Decision(NOTHING, Refused(Why.STILL_UNDECIDED, text, TransactionState.UNDECIDED.value))
    verdict = group.settled.get(tx_id) if group is not None else None
    found = verdict or command.settled
    if found is None or (isinstance(found, SettledRow) and not _is_of(state, found, group_name, tx_id)):
        text = f"transaction {tx_id!r} of group {group_name!r} is not among the recent verdicts"
        return refuse(Why.NOT_FOUND, text)
    known = _comparison_of(group_name, tx_id, found, command.operator)
    agrees = known.committed == command.committed
    # A reader of markers was asked before somebody else compared it: what it says now is not news.
    if agrees or command.is_marker:
        return Decision(NOTHING, _made(known, agrees))
    what = f"the contradiction of transaction {tx_id!r} was not remembered"
    if len(state.comparisons) >= limits.COMPARISONS_MAX or _reported(state) >= limits.COMPARISONS_REPORTED_MAX:
        return refuse(Why.LIMIT_REACHED, f"{what}: there are too many; see `halfmq tx damaged`")
    if not base_has_space(state, comparison_bytes(known)):
        return Decision(NOTHING, no_space(state, what))
    return _found(command, known, offset, now_ms)


def _reported(state: State) -> int:
    """Findings of transactions that were not expected: they leave space for the verdicts of operators and policies."""
    return sum(one.half_offset < 0 for one in state.comparisons.values())


def _is_of(state: State, row: SettledRow, group: str, tx_id: str) -> bool:
    of_group = not (row.group_hash ^ hash64(group.encode())) & _HASH_MASK
    return (
        of_group and not (row.id_hash ^ hash64(tx_id.encode())) & _HASH_MASK and row.verdict_position >= state.log_start
    )


def _comparison_of(group: str, tx_id: str, found: Verdict | SettledRow, operator: str) -> Comparison:
    position = found.position if isinstance(found, Verdict) else found.verdict_position
    by = operator[: limits.OPERATOR_CHARS_MAX] if found.decided_by == DecidedBy.OPERATOR else ""
    return Comparison(group, tx_id, found.committed, found.decided_by, by, -1, 0, found.settled_at_ms, position)


def decide_forget_damage(state: State, command: ForgetDamage, now_ms: int) -> Decision:
    """An operator has seen a finding, or gives up a comparison.

    Replies:
        ComparisonMade: what was known. Refused NOT_FOUND. NOT_NOW: its marker may still be read.
    """
    known = state.comparisons.get((command.group, command.tx_id))
    if known is None:
        return refuse(Why.NOT_FOUND, f"nothing is to be forgotten of transaction {command.tx_id!r}")
    if is_comparable(state, known):
        text = f"transaction {command.tx_id!r} will be compared with its marker as soon as a service of its group can read it"
        return refuse(Why.NOT_NOW, text)
    record = compared(next_offset(state), ComparisonResult.FORGOTTEN, known)
    decision = Decision((record,), _made(known, not known.is_finding))
    return signed(decision, OperatorAction.FORGET_DAMAGE, command.tx_id, command.by)


def is_comparable(view: State, known: Comparison) -> bool:
    """Whether a reader of markers may still compare it: its half, which says where the marker is, is in the log."""
    return not known.is_finding and known.half_offset >= view.log_start
