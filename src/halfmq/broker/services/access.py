"""What a request needs: which rights, on which of the things that it names. Every front door says it of each of its requests, in a table,
and ``Guard`` decides by it, alike for all of them. A broker without users has no guards.

Retry and dead-letter topics belong to their group: who may consume as the group may use them, and nobody else.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.broker.peers.principal import Principal
from halfmq.broker.services.topics import TEMPLATE
from halfmq.core.decision import Refused, Why
from halfmq.core.state import DLQ_PREFIX, RETRY_PREFIX, State
from halfmq.model.ids import REPLY_TOPIC_SUFFIX
from halfmq.model.users import EVERYTHING, Right, Scope

_AUDITED: Final = frozenset({Right.ADMINISTER, Right.SETTLE})
#: Names of a request that a refusal and the audit log show.
SHOWN_MAX: Final = 8
_NAME_CHARS_SHOWN: Final = 80
#: The group of Java clients that only send back what they consumed. They all name it in their heartbeats.
CLIENT_INNER_PRODUCER: Final = "CLIENT_INNER_PRODUCER"


class Asked(NamedTuple):
    """A right that a request needs, on one name; ``EVERYTHING``: on all."""

    right: Right
    scope: Scope
    name: str

    def __str__(self) -> str:
        what = "the broker" if self.scope is Scope.BROKER else f"{self.scope.value} {self.name[:_NAME_CHARS_SHOWN]!r}"
        return f"{self.right.value} on {what}"


class InField(NamedTuple):
    """The right on what a field of the request names."""

    right: Right
    scope: Scope
    field: str
    #: Between several names; "": there is one.
    separator: str = ""
    #: Whether an empty field means everything, and not nothing.
    all_if_empty: bool = True
    #: Another field: while that is empty, the request asks for nothing here; "": there is none.
    only_with: str = ""
    #: A name that needs no right here.
    open_name: str = ""


class InBody(NamedTuple):
    """The rights on what the body names."""

    needs: tuple[tuple[Right, Scope], ...]
    #: Reads the names. Raises ProtocolError as the handler would.
    read: Callable[[bytes], Iterable[Asked]]


class OnBroker(NamedTuple):
    """The right on the broker as a whole."""

    right: Right


class WhenRead(NamedTuple):
    """The right on the topic of a stored message, which is known once it was read: the handler asks ``Peer.may``."""

    right: Right


Need = InField | InBody | OnBroker | WhenRead


class Access(NamedTuple):
    """What a request needs, all of it. Nothing: everybody who logs in may send it."""

    needs: tuple[Need, ...] = ()
    #: Whether the request continues one that the audit log has already: then that has it only if it is refused.
    continues: bool = False

    @property
    def rights(self) -> frozenset[Right]:
        """Every right that it may need."""
        return frozenset(
            right
            for need in self.needs
            for right in ([right for right, _ in need.needs] if isinstance(need, InBody) else [need.right])
        )


_REMEMBERING: Final = """
def serve(peer, request):
    fields = request.ext
    try:
        last = peer.principal.granted_last[what]
    except KeyError:
        check(peer, request)
        return
    if {is_last}:
        handler(peer, request)
    elif peer.principal.has_granted(what, key(fields)):
        handler(peer, request)
    else:
        check(peer, request)
"""


class Guard:
    """Decides about the requests of one kind."""

    def __init__(self, what: str, access: Access, view: State) -> None:
        """``what``: the kind of request, for the audit log."""
        self.what = what
        self._needs = access.needs
        self._view = view
        #: Whether the audit log has each such request, also an allowed one.
        self.is_audited = bool(access.rights & _AUDITED) and not access.continues
        fields = [
            name for need in access.needs if isinstance(need, InField) for name in (need.field, need.only_with) if name
        ]
        has_others = any(isinstance(need, InBody) for need in access.needs)
        #: What a decision depends on, if that is only some fields: requests that give the same are allowed alike (``Principal.granted``).
        self._fields = () if has_others else tuple(dict.fromkeys(fields))
        self._key: Callable[[Any], Hashable] | None = attrgetter(*self._fields) if self._fields else None

    def remembering(
        self, handler: Callable[[Any, Any], None], check: Callable[[Any, Any], None]
    ) -> Callable[[Any, Any], None]:
        """``handler`` for requests like one that was allowed before, ``check`` for others; both get the peer and the request.

        Made of text, since the fields stand in the code then: to fetch them by name, and to hash them, takes four times as long, which is
        1 % of a transaction. The names are those of the table of commands.
        """
        if self._key is None:
            return check
        parts = [""] if len(self._fields) == 1 else [f"[{number}]" for number in range(len(self._fields))]
        is_last = " and ".join(f"fields.{name} == last{part}" for name, part in zip(self._fields, parts, strict=True))
        names: dict[str, Any] = {"handler": handler, "check": check, "what": self.what, "key": self._key}
        exec(_REMEMBERING.format(is_last=is_last), names)  # noqa: S102  # nosec B102 # no text of a peer is in it
        made: Callable[[Any, Any], None] = names["serve"]
        return made

    def refusal(self, principal: Principal, fields: Any, body: bytes) -> Refused | None:
        """Why the user may not send this request; None: it is allowed.

        Raises:
            ProtocolError: the body is malformed.
        """
        if principal.only and principal.only != self.what:
            return Refused(
                Why.NO_PERMISSION, f"user {principal.name!r} may make the first administrator, and nothing else"
            )
        asked = list(self.asked(fields, body))
        for one in asked:
            if not _is_open(one) and not principal.may(*_owned(one)):
                return not_allowed(principal.name, _owned(one))
        unknown = self._unknown(asked)
        if unknown and not principal.is_new(unknown):
            most = principal.limits.names
            text = f"user {principal.name!r} has named {most} topics and groups that did not exist, as many as it may (halfmq user set --names)"
            return Refused(Why.LIMIT_REACHED, text)
        if self._key is not None:
            principal.grant(self.what, self._key(fields))
        return None

    def asked(self, fields: Any, body: bytes) -> Iterator[Asked]:
        """The rights that this request needs."""
        for need in self._needs:
            if isinstance(need, InField):
                for name in _names(need, fields):
                    yield Asked(need.right, need.scope, name)
            elif isinstance(need, InBody):
                yield from need.read(body)
            elif isinstance(need, OnBroker):
                yield Asked(need.right, Scope.BROKER, EVERYTHING)

    def _unknown(self, asked: Sequence[Asked]) -> list[tuple[Scope, str]]:
        """What a request may create by naming it."""
        view = self._view
        known: dict[Scope, list[Container[str]]] = {
            Scope.TOPIC: [view.topics_by_name],
            Scope.GROUP: [view.groups, view.producer_groups],
        }
        return [
            (scope, name)
            for right, scope, name in asked
            if right in (Right.SEND, Right.CONSUME)
            and scope in known
            and len(name) <= limits.RETRY_TOPIC_CHARS_MAX  # a longer one is refused by who would create it
            and not any(name in those for those in known[scope])
        ]


def not_allowed(user: str, asked: Asked) -> Refused:
    """The refusal of a request for want of a right. A client that looks for a topic first is refused there: any right on it would do."""
    other = ", nor another right on it" if asked.right is Right.DESCRIBE else ""
    return Refused(Why.NO_PERMISSION, f"user {user!r} has no right to {asked}{other}")


def _names(need: InField, fields: Any) -> Iterable[str]:
    if need.only_with and not getattr(fields, need.only_with):
        return ()
    value = getattr(fields, need.field)
    names = value.split(need.separator) if need.separator and value else [value]
    present = [name for name in names if name]
    if need.open_name and present == [need.open_name]:
        return ()
    return present or ([EVERYTHING] if need.all_if_empty else [])


def _is_open(asked: Asked) -> bool:
    """Whether every user may: clients ask for the routes of these topics, whatever they do."""
    right, scope, name = asked
    return scope is Scope.TOPIC and right is Right.DESCRIBE and (name == TEMPLATE or name.endswith(REPLY_TOPIC_SUFFIX))


def _owned(asked: Asked) -> Asked:
    """The right on the group, where a topic belongs to one."""
    right, scope, name = asked
    if scope is Scope.TOPIC and "%" in name:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if name.startswith(prefix):
                owner = right if right in (Right.DESCRIBE, Right.ADMINISTER) else Right.CONSUME
                return Asked(owner, Scope.GROUP, name.removeprefix(prefix))
    return asked


def owned(right: Right, topic: str) -> Asked:
    """The right on the topic, or on its group."""
    return _owned(Asked(right, Scope.TOPIC, topic))
