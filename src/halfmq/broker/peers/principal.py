"""Who a peer is: the user of a connection, with the rights and limits that hold now. All connections of a user share one ``Principal``."""

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from halfmq import limits
from halfmq.model.users import Permission, Right, Scope, User, UserLimits, allows, parse_permissions

#: Remembered answers of one user, before they are forgotten together.
_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_CHARS_MAX: Final = 3 * limits.RETRY_TOPIC_CHARS_MAX


class Principal:
    """A user at work. ``services.users`` makes it, and changes it when an administrator changes the user."""

    __slots__ = (
        "_refilled_s",
        "_tokens",
        "connections",
        "granted",
        "granted_last",
        "limits",
        "name",
        "names",
        "only",
        "permissions",
    )

    def __init__(self, name: str, only: str = "") -> None:
        self.name = name
        #: The one kind of request that it may send; "": what its permissions say.
        self.only = only
        self.permissions: tuple[Permission, ...] = ()
        self.limits = UserLimits()
        #: Numbers of the peers that are this user.
        self.connections: set[int] = set()
        #: Topics and groups that did not exist when the user named them first.
        self.names: set[tuple[Scope, str]] = set()
        #: What was found to be allowed, by kind of request, so that frequent ones are not examined again.
        self.granted: dict[str, set[Hashable]] = {}
        #: The last one of each kind: it is compared, which is faster than to look it up.
        self.granted_last: dict[str, Hashable] = {}
        self._tokens = 0.0
        self._refilled_s = 0.0

    def become(self, user: User) -> None:
        """Take the permissions and limits of ``user``."""
        self.permissions = tuple(one for text in user.permissions for one in parse_permissions(text))
        self.limits = user.limits
        self._forget()

    def may(self, right: Right, scope: Scope, name: str) -> bool:
        """Whether the user has the right on ``name``."""
        return allows(self.permissions, right, scope, name)

    def grant(self, what: str, request: Hashable) -> None:
        """Remember that such requests of this kind are allowed, unless their names are longer than any that exists."""
        if len(str(request)) > _REMEMBERED_CHARS_MAX:
            return
        if sum(map(len, self.granted.values())) >= _REMEMBERED_MAX:
            self._forget()
        self.granted.setdefault(what, set()).add(request)
        self.granted_last[what] = request

    def has_granted(self, what: str, request: Hashable) -> bool:
        """Whether such requests of this kind are allowed, as was remembered."""
        if request not in self.granted.get(what, ()):
            return False
        self.granted_last[what] = request
        return True

    def _forget(self) -> None:
        self.granted.clear()
        self.granted_last.clear()

    def wait_s(self, clock: Callable[[], float], requests: int) -> float:
        """Count that many requests. 0: within the limit; else how long the user must send no other one, s. ``clock``: monotonic, s."""
        rate = self.limits.requests_per_s
        if not rate:
            return 0.0
        now_s = clock()
        self._tokens = min(rate, self._tokens + (now_s - self._refilled_s) * rate)
        self._refilled_s = now_s
        self._tokens -= requests
        return max(0.0, -self._tokens / rate)

    def is_new(self, names: Iterable[tuple[Scope, str]]) -> bool:
        """Whether the user may name these, which do not exist, too. They count from now on."""
        if not self.limits.names:
            return True
        more = self.names.union(names)
        if len(more) > self.limits.names:
            return False
        self.names = more
        return True
