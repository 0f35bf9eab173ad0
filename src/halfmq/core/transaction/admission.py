"""Limits of a transaction, and of all undecided transactions of a producer group.

They are checked before anything is written and after deduplication: a stored half message gets its first reply however full the
group is. FMQ source, 3.3.2. Clients choose the names of groups, so there are limits over all groups as well.

Undecided transactions of strangers cannot be removed, so the last quarter of ``undecided_groups_max`` is for groups that are known to be
somebody's: with a producer that is connected and is in few groups, with limits of their own, or of a query that has decided a batch.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from halfmq import limits
from halfmq.core.decision import Refused, Why
from halfmq.core.state import HeldByUser, ProducerGroup, State, Undecided
from halfmq.model.records import COPIED_HALF_MESSAGE_AT, REF_BYTES
from halfmq.model.settings import BrokerSettings
from halfmq.model.share import share_of

#: Bytes of a commit without halves and references: record head, prefix, longest group, id and user, alignment.
COMMIT_FRAME_BYTES = 16 + limits.GROUP_CHARS_MAX + limits.TRANSACTION_ID_CHARS_MAX + limits.USER_NAME_CHARS_MAX + 8
#: Bytes of one half in a commit without its message: it may have to be copied forward, and it has a reference.
HALF_FRAME_BYTES = COPIED_HALF_MESSAGE_AT + REF_BYTES
#: Connections of a group that are looked at for one that is in few groups.
_CONNECTIONS_EXAMINED_MAX: Final = 64
#: Groups that are looked at for the one that has most, for each refusal.
_GROUPS_EXAMINED_MAX: Final = 256
_NOTHING_HELD: Final = HeldByUser()
_ONE_HALF_BYTES = COMMIT_FRAME_BYTES + HALF_FRAME_BYTES


def refuse_half(
    state: State, group: ProducerGroup | None, known: Undecided | None, message_bytes: int
) -> Refused | None:
    """Why this half is refused; None if it is accepted. ``known``: its transaction, if it has other halves."""
    commit_bytes = _ONE_HALF_BYTES + message_bytes
    if known is not None:
        commit_bytes += sum([HALF_FRAME_BYTES + half.message_bytes for half in known.halves])
    if commit_bytes > state.record_bytes_max:
        return too_large(state, commit_bytes)
    return refuse_bytes(state, group, known, message_bytes)


def too_large(state: State, commit_bytes: int) -> Refused:
    """The refusal of a message whose transaction would take ``commit_bytes`` in the log."""
    text = (
        f"the transaction would take {commit_bytes} bytes; one may take {state.record_bytes_max} "
        f"(64 MiB, and half a segment of {state.settings.segment_bytes})"
    )
    return Refused(Why.MESSAGE_ILLEGAL, text)


def refuse_bytes(
    state: State,
    group: ProducerGroup | None,
    known: Undecided | None,
    message_bytes: int,
    *,
    of_known_query: bool = False,
) -> Refused | None:
    """Why there is no space for ``message_bytes`` more of undecided messages; None if there is. Arguments as for ``refuse_half``."""
    if group is None:
        return _refuse_first(state, message_bytes) or _refuse_in_all(state, None, None, message_bytes, of_known_query)
    count = len(group.undecided)
    if known is None and count >= group.undecided_max:
        if not group.undecided_max:
            return _none_at_all(group.name)
        return Refused(
            Why.LIMIT_REACHED,
            f"group {group.name!r} has {count} undecided transactions, as many as it may; settle some",
        )
    if group.derived.bytes + message_bytes > group.undecided_bytes_max:
        return Refused(
            Why.LIMIT_REACHED,
            f"group {group.name!r} has {group.derived.bytes} bytes of undecided messages; {group.undecided_bytes_max} are "
            "allowed; settle some",
        )
    settings = state.settings
    if (
        state.derived.undecided_bytes + message_bytes > settings.undecided_total_bytes_max
        or state.derived.undecided_count >= settings.undecided_total_max
        or (not count and state.derived.undecided_groups >= _strangers_max(settings))
    ):
        return _refuse_in_all(state, group, known, message_bytes, of_known_query)
    return None


def refuse_of_user(state: State, name: str, message_bytes: int, *, begins: bool) -> Refused | None:
    """Why this user may not prepare ``message_bytes`` more, and begin another transaction with them; None if it may, or nobody is known.

    Without a limit of its own, a user has its share of the limits over all groups (``share_of``).
    """
    held = state.derived.undecided_of_user.get(name) or _NOTHING_HELD
    user = state.users.get(name)
    own = user.limits.undecided if user is not None else 0
    total, total_bytes = state.settings.undecided_total_max, state.settings.undecided_total_bytes_max
    if held.message_bytes + message_bytes > total_bytes - total_bytes // 4:  # ``share_of`` inlined
        text = (
            f"user {name!r} has {held.message_bytes} bytes of undecided messages; {share_of(total_bytes)} of {total_bytes} are allowed to one "
            "user (--undecided-total-bytes-max); settle some, see halfmq tx stats"
        )
        return Refused(Why.LIMIT_REACHED, text)
    most, count = own or total - total // 4, held.transactions
    if not begins or count < most:
        return None
    text = f"user {name!r} has {count} undecided transactions, as many as it may (`halfmq user set --undecided`)"
    if not own:
        text = (
            f"user {name!r} has {count} of {total} undecided transactions, as many as one user may "
            "(--undecided-total-max, or `halfmq user set --undecided`); settle some, see halfmq tx stats"
        )
    elif count > most:
        text = f"user {name!r} has {count} undecided transactions, and may have {most} (`halfmq user set --undecided`)"
    return Refused(Why.LIMIT_REACHED, text)


def _most_of_bytes(state: State) -> str:
    """Who has most of the undecided bytes, as a clause."""
    return _holder(state, lambda held: held.message_bytes, lambda group: group.derived.bytes)


def _most_of_count(state: State) -> str:
    """Who has most of the undecided transactions, as a clause."""
    return _holder(state, lambda held: held.transactions, lambda group: len(group.undecided))


def _holder(state: State, of_user: Callable[[HeldByUser], int], of_group: Callable[[ProducerGroup], int]) -> str:
    users = {name: of_user(held) for name, held in state.derived.undecided_of_user.items()}
    if users:
        name = max(users, key=users.__getitem__)
        return f"{users[name]} of them by user {name!r}"
    groups = state.producer_groups
    if len(groups) > _GROUPS_EXAMINED_MAX:
        return f"of {state.derived.undecided_groups} producer groups"
    largest = max(groups.values(), key=of_group, default=None)
    return f"{of_group(largest)} of them by producer group {largest.name!r}" if largest is not None else "of nobody"


def _strangers_max(settings: BrokerSettings) -> int:
    most = settings.undecided_groups_max
    return most - most // limits.UNDECIDED_GROUPS_KNOWN_PART


def _is_somebodys(state: State, group: ProducerGroup) -> bool:
    if group.name in state.producer_settings:
        return True
    produces = state.session.produces
    most = limits.PRODUCER_GROUPS_PER_CONNECTION_EXEMPT
    return any(
        len(produces.get(connection, ())) <= most
        for connections in (group.session.members, group.session.pollers)
        for connection in islice(connections, _CONNECTIONS_EXAMINED_MAX)
    )


def _refuse_in_all(
    state: State, group: ProducerGroup | None, known: Undecided | None, message_bytes: int, of_known_query: bool
) -> Refused | None:
    """Refusal by the limits over all groups. A transaction that has begun may continue, except for bytes, which every half adds."""
    settings = state.settings
    if state.derived.undecided_bytes + message_bytes > settings.undecided_total_bytes_max:
        what = f"{state.derived.undecided_bytes} bytes of undecided messages ({_most_of_bytes(state)})"
        return _full(what, "--undecided-total-bytes-max", settings.undecided_total_bytes_max)
    if known is not None:
        return None
    if state.derived.undecided_count >= settings.undecided_total_max:
        what = f"{state.derived.undecided_count} undecided transactions ({_most_of_count(state)})"
        return _full(what, "--undecided-total-max", settings.undecided_total_max)
    if group is not None and group.undecided:
        return None
    what = f"{state.derived.undecided_groups} producer groups with undecided transactions"
    if state.derived.undecided_groups >= settings.undecided_groups_max:
        return _full(what, "--undecided-groups-max", settings.undecided_groups_max)
    most = _strangers_max(settings)
    if state.derived.undecided_groups < most or of_known_query or (group is not None and _is_somebodys(state, group)):
        return None
    text = (
        f"this broker has {what}, and accepts {most} of groups without a connected producer or limits of their own (of "
        f"{settings.undecided_groups_max}, --undecided-groups-max); settle some, see halfmq tx stats"
    )
    return Refused(Why.LIMIT_REACHED, text)


def _full(what: str, flag: str, most: int) -> Refused:
    text = f"this broker has {what}, and may have {most} ({flag}); settle some, see halfmq tx stats"
    return Refused(Why.LIMIT_REACHED, text)


def _none_at_all(group: str) -> Refused:
    """The limit is 0 transactions. The code makes clients not retry: RocketMQ's ``rejectTransactionMessage``."""
    return Refused(Why.NO_PERMISSION, f"{group or 'this broker'} accepts no transactions: the limit is 0")


def _refuse_first(state: State, message_bytes: int) -> Refused | None:
    """Refusal for a new group."""
    settings = state.settings
    if not settings.undecided_max:
        return _none_at_all("")
    if message_bytes <= settings.undecided_bytes_max:
        return None
    return Refused(
        Why.LIMIT_REACHED,
        f"a group may have {settings.undecided_max} undecided transactions and {settings.undecided_bytes_max} bytes of "
        "their messages on this broker",
    )


def groups_refusal(view: State, connection: int, producers: Iterable[str], consumers: Iterable[str] = ()) -> str | None:
    """Why ``connection`` may not join these producer and consumer groups in addition to its own; None if it may."""
    session = view.session
    produces = {*session.produces.get(connection, ()), *producers}
    consumes = {*session.consumes.get(connection, ()), *consumers}
    if len(produces) + len(consumes) <= limits.GROUPS_PER_CONNECTION_MAX:
        return None
    return f"a connection may be in {limits.GROUPS_PER_CONNECTION_MAX} groups at most"


def producer_groups_refusal(view: State, connection: int, names: Iterable[str]) -> str | None:
    """Why the unknown groups among those that ``connection`` names may not be added; None if they may."""
    named = set(names)
    new = sum([name not in view.producer_groups for name in named])
    its_own = view.session.produces.get(connection, ())
    if not new or len(named.union(its_own)) <= limits.PRODUCER_GROUPS_PER_CONNECTION_EXEMPT:
        return None
    return too_many_groups(view, new)


def too_many_groups(view: State, new: int) -> str | None:
    """Why ``new`` more producer groups may not be added; None if they may."""
    most = view.settings.undecided_groups_max + limits.PRODUCER_GROUPS_FREE
    if len(view.producer_groups) + new <= most:
        return None
    return f"{len(view.producer_groups)} producer groups are known, and {most} may be (--undecided-groups-max)"
