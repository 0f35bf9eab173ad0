"""Users (``model.users``) are made, changed and removed by administrators.

    SetUser     the user with its secrets, permissions and limits; the first one turns on that requests need a user
    RemoveUser  its name may be given to somebody else afterwards; the log still says what the first one did

As soon as there are users there is an administrator among them: without one nobody could change any. So the first user is one, and the
last administrator stays. There is no way back to a broker without users.
"""

from typing import Final

from msgspec.structs import replace

from halfmq import limits
from halfmq.core.audit import signed
from halfmq.core.base_bytes import refuse_space, user_bytes
from halfmq.core.commands import RemoveUser, SetUser
from halfmq.core.decision import Decision, Refused, UserIsSet, UserRemoved, Why, refuse
from halfmq.core.schema import user_set
from halfmq.core.state import State, next_offset
from halfmq.model.records import OperatorAction
from halfmq.model.settings import USERS_PART
from halfmq.model.users import User

_ADMINISTERS: Final = "administer:broker"


def decide_set_user(state: State, command: SetUser, now_ms: int) -> Decision:
    """Make a user, or change one. Secrets that are no longer valid are dropped.

    Replies:
        UserIsSet. Refused USER_EXISTS, NOT_FOUND: there is one of this name, or none. LIMIT_REACHED: there are as many users as may be, or
        no space in a base. NOT_NOW: nobody would be an administrator.
    """
    name = command.name
    known = state.users.get(name)
    if command.is_new and known is not None:
        return refuse(Why.USER_EXISTS, f"user {name!r} exists already; `halfmq user set` changes it")
    if not command.is_new and known is None:
        return _unknown(name)
    secrets = tuple([one for one in command.user.secrets if not one.until_ms or one.until_ms > now_ms])
    user = replace(command.user, secrets=secrets)
    if not user.is_administrator and _is_last(state, name):
        text = f"user {name!r} has to have the permission {_ADMINISTERS}: nobody else has it, and then nobody could change users"
        return refuse(Why.NOT_NOW, text)
    refused = _refuse_space(state, name, user)
    if refused is not None:
        return Decision((), refused)
    decision = Decision((user_set(next_offset(state), name, user),), UserIsSet())
    return signed(decision, OperatorAction.SET_USER, name, command.by)


def decide_remove_user(state: State, command: RemoveUser, now_ms: int) -> Decision:
    """Remove a user.

    Replies:
        UserRemoved. Refused NOT_FOUND; NOT_NOW: it is the last administrator.
    """
    name = command.name
    if name not in state.users:
        return _unknown(name)
    if _is_last(state, name):
        text = f"user {name!r} is the only one with the permission {_ADMINISTERS}, and stays: nobody could change users without it"
        return refuse(Why.NOT_NOW, text)
    decision = Decision((user_set(next_offset(state), name, None),), UserRemoved())
    return signed(decision, OperatorAction.REMOVE_USER, name, command.by)


def _unknown(name: str) -> Decision:
    return refuse(Why.NOT_FOUND, f"there is no user {name!r}")


def _is_last(state: State, name: str) -> bool:
    """Whether nobody but ``name`` is an administrator."""
    return not any(user.is_administrator for other, user in state.users.items() if other != name)


def _refuse_space(state: State, name: str, user: User) -> Refused | None:
    """Why there is no space for this user; None if there is. One that gets smaller always has space."""
    known = state.users.get(name)
    what = f"user {name!r} was not stored"
    most = limits.USERS_MAX
    if known is None and len(state.users) >= most:
        return Refused(Why.LIMIT_REACHED, f"{what}: this broker has {len(state.users)} users, and may have {most}")
    more = user_bytes(name, user) - user_bytes(name, known)
    taken = sum([user_bytes(*item) for item in state.users.items()])
    segment_bytes = state.settings.segment_bytes
    most_bytes = USERS_PART.bytes_max(segment_bytes)
    if more > 0 and taken + more > most_bytes:
        text = f"{len(state.users)} users take {taken} of {most_bytes} bytes in the base of a segment of {segment_bytes} bytes"
        return Refused(
            Why.LIMIT_REACHED, f"{what}: {text}, and it needs {more} more; remove some, or give them fewer permissions"
        )
    return refuse_space(state, more, what)
