"""``Branch``: one call of one participant in a global transaction of Try/Confirm/Cancel, as it travels with messages and requests."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from halfmq import limits
from halfmq.client.message import Message
from halfmq.client.outgoing import OwnProperties
from halfmq.errors import UsageError
from halfmq.model import properties as names
from halfmq.model.ids import is_transaction_id

TRY: Final = "try"
CONFIRM: Final = "confirm"
CANCEL: Final = "cancel"
OPS: Final = (TRY, CONFIRM, CANCEL)
#: Characters of a branch id.
BRANCH_CHARS_MAX: Final = limits.TRANSACTION_ID_CHARS_MAX
#: Of a wrong value, in an error.
_SHOWN_CHARS_MAX: Final = 60

#: Of a log position.
_POSITION_CHARS_MAX: Final = 19
_PROPERTIES: Final = {
    "gid": names.HMQ_TCC_ID, "group": names.HMQ_TCC_GROUP, "branch": names.HMQ_TCC_BRANCH, "op": names.HMQ_TCC_OP,
    "broker": names.HMQ_TCC_BROKER, "since": names.HMQ_TCC_SINCE,
}  # fmt: skip


class Branch(NamedTuple):
    """A call of a branch. Give it to ``Barrier.once``.

    ``gid``, ``group``: id and producer group of the global transaction; ``branch``: the branch in it; ``op``: ``try``, ``confirm`` or
    ``cancel``. ``broker``, ``since``: the broker that has the transaction, and its log position when that began: for ``AsyncClient.fence``.
    """

    gid: str
    group: str
    branch: str
    op: str
    broker: str
    since: int

    @classmethod
    def of(cls, message: Message) -> "Branch":
        """The call that ``message`` is.

        Raises:
            UsageError: it is none; ``t.call`` sends those that are.
        """
        if not isinstance(message, Message):
            raise UsageError(f"{_shown(message)} is no message", hint="Branch.of(message) of a consumed message")
        return cls._read({name: message.properties.get(of, "") for name, of in _PROPERTIES.items()}, repr(message), str)

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "Branch":
        """The call that an HTTP request is, made with ``headers()``; the case of names does not matter.

        Raises:
            UsageError: it is none.
        """
        if not isinstance(headers, Mapping) or not all(
            isinstance(text, str) for pair in headers.items() for text in pair
        ):
            raise UsageError(
                f"{headers!r} are no headers", hint="a mapping of str to str, such as dict(request.headers)"
            )
        given = {name.lower(): value for name, value in headers.items()}
        return cls._read({name: given.get(_header(of), "") for name, of in _PROPERTIES.items()}, "the request", _header)

    def headers(self) -> dict[str, str]:
        """For an HTTP request to the participant: ``{"hmq-tcc-id": ..., ...}``. Proxies drop names with underscores, so there are none."""
        return {_header(name): value for name, value in self.properties().items()}

    def properties(self) -> dict[str, str]:
        """For a message to the participant, as ``t.call`` sends it: ``properties=branch.properties()``, unchanged."""
        return OwnProperties({_PROPERTIES[name]: str(value) for name, value in self._asdict().items()})

    @classmethod
    def _read(cls, texts: dict[str, str], what: str, shown: Callable[[str], str]) -> "Branch":
        missing = [shown(_PROPERTIES[name]) for name, text in texts.items() if not text]
        since = texts.pop("since")
        if missing or not (since.isascii() and since.isdigit() and len(since) <= _POSITION_CHARS_MAX):
            raise UsageError(
                f"{what} is no call of a branch: it has no {', '.join(missing) or 'position'}",
                hint="its try is made with t.call, which sends confirm and cancel",
            )
        read = cls(**texts, since=int(since))
        checked_branch(read, what)
        return read


def checked_branch(call: Branch, what: str = "this") -> None:
    """Raise UsageError unless ``call`` is one that a barrier can have as a row. ``what`` is said to be none."""
    gid, branch, op = (getattr(call, name, None) for name in ("gid", "branch", "op"))
    wrong = f"it is {_shown(call)}" if gid is None else ""
    if not wrong and op not in OPS:
        wrong = f"a branch is tried, confirmed or cancelled, and not {_shown(op)}"
    for kind, text in (("global transaction id", gid), ("branch id", branch)):
        if not wrong and not (isinstance(text, str) and is_transaction_id(text)):
            wrong = f"{_shown(text)} is not a {kind}, which is 1 to {BRANCH_CHARS_MAX} letters, digits and ._:-"
    if wrong:
        raise UsageError(
            f"{what} is no call of a branch: {wrong}", hint="Branch.of(message), or Branch.from_headers(headers)"
        )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


def _header(name: str) -> str:
    return name.lower().replace("_", "-")
