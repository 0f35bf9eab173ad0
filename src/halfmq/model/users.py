"""Users of a broker, and what they may do.

A user has permissions. Each gives a right on topics or groups whose names match a pattern, or on the broker as a whole:

    send:topic:orders-*      consume:group:billing      describe:broker      administer:*

A pattern is a name, or the beginning of names followed by ``*``. Anything that a request names must be allowed. A request that names
nothing, and so means everything, needs the pattern ``*``. Who has any right on something may also have it described.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.errors import UsageError


class Right(Enum):
    """What may be done. The texts are in records of users: add, never rename."""

    #: Store messages and half messages, settle one's own group's transactions, and get its checks, which contain bodies.
    SEND = "send"
    #: Fetch messages as a group, and say how far the group is.
    CONSUME = "consume"
    #: See routes, settings, numbers, listings of transactions; never bodies.
    DESCRIBE = "describe"
    #: Change topics, groups, users and settings.
    ADMINISTER = "administer"
    #: Settle somebody else's transaction, as an operator.
    SETTLE = "settle"
    #: Decide batches of a query, as the sink of Spark.
    DECIDE = "decide"
    #: Read the table of all transactions, with what is undecided.
    READ_UNDECIDED = "read-undecided"


class Scope(Enum):
    """What a right is on."""

    TOPIC = "topic"
    #: Of consumers or of producers.
    GROUP = "group"
    BROKER = "broker"


class Permission(NamedTuple):
    """A right on everything in a scope that the pattern matches; in the scope BROKER it is ``*``."""

    right: Right
    scope: Scope
    pattern: str

    def matches(self, name: str) -> bool:
        """Whether it is on ``name``; on everything, if that is ``*``."""
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1]) and (name != EVERYTHING or self.pattern == EVERYTHING)
        return name == self.pattern

    def __str__(self) -> str:
        return f"{self.right.value}:{self.scope.value}" + ("" if self.scope is Scope.BROKER else f":{self.pattern}")


#: Matches every name; and stands for everything where a request names nothing.
EVERYTHING: Final = "*"
_USER_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.USER_NAME_CHARS_MAX - 1}}}")
_PATTERN: Final = re.compile(rf"[A-Za-z0-9%|_-]{{0,{limits.GROUP_CHARS_MAX}}}\*?")
_HINT: Final = "RIGHT:topic:PATTERN, RIGHT:group:PATTERN, RIGHT:broker or RIGHT:*, with one of the rights " + ", ".join(
    right.value for right in Right
)


def is_user_name(text: str) -> bool:
    """1 to 64 letters, digits and ``._-``, the first one a letter or digit."""
    return _USER_NAME.fullmatch(text) is not None


def parse_permissions(text: str) -> tuple[Permission, ...]:
    """The permissions that a text means: one, or for ``RIGHT:*`` one for each scope.

    Raises:
        UsageError: it is no permission. The text says what is.
    """
    right, _, on = text.strip().partition(":")
    scope, colon, pattern = on.partition(":")
    if right in _RIGHTS and on == EVERYTHING:
        return tuple(Permission(_RIGHTS[right], each, EVERYTHING) for each in Scope)
    if right in _RIGHTS and on == Scope.BROKER.value:
        return (Permission(_RIGHTS[right], Scope.BROKER, EVERYTHING),)
    named = scope in (Scope.TOPIC.value, Scope.GROUP.value)
    if right not in _RIGHTS or not named or not colon or not pattern or not _PATTERN.fullmatch(pattern):
        raise UsageError(f"{text.strip()[:100]!r} is no permission", hint=_HINT)
    return (Permission(_RIGHTS[right], Scope(scope), pattern),)


_RIGHTS: Final = {right.value: right for right in Right}
#: Of an administrator.
ALL_PERMISSIONS: Final = tuple(str(Permission(right, scope, EVERYTHING)) for right in Right for scope in Scope)


class UserSecret(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A secret with which the user signs, sealed with the key of the broker's operator (``runtime.sealing``)."""

    sealed: bytes
    #: Broker time from which it is no longer valid, ms; 0: valid without end.
    until_ms: int = 0


class UserLimits(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a user may have at most; 0: no limit but the broker's."""

    connections: int = 0
    requests_per_s: int = 0
    #: Undecided transactions, over all producer groups.
    undecided: int = 0
    #: Topics and groups that requests create by naming them, since the broker's start.
    names: int = 0


class User(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A user, as the log has it. A snapshot and a base contain it as an array of its fields, in this order."""

    #: Newest first. At most two: after a rotation the one before is valid for a time.
    secrets: tuple[UserSecret, ...]
    #: Argon2id in its usual text form; "": none. Only the HTTP port takes a password.
    password: str
    #: As ``Permission.__str__`` has them.
    permissions: tuple[str, ...]
    limits: UserLimits = UserLimits()

    @property
    def is_administrator(self) -> bool:
        """Whether the user may make users."""
        return str(Permission(Right.ADMINISTER, Scope.BROKER, EVERYTHING)) in self.permissions


def allows(permissions: Iterable[Permission], right: Right, scope: Scope, name: str) -> bool:
    """Whether one of the permissions gives ``right`` on ``name``, or is on it at all if ``right`` is DESCRIBE."""
    return any(
        one.scope is scope and (one.right is right or right is Right.DESCRIBE) and one.matches(name)
        for one in permissions
    )
