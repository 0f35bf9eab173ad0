"""Users: who a connection is, and what administrators change.

A user is durable state of the core; this module has the secrets in the clear, in memory, and what a user's connections share
(``Principal``). The log has secrets sealed with a key that is not in it. A broker without a user has one for its first administrator,
whose secret is a token in a file; with the first user it is gone.

A change takes effect when it is durable. Permissions that change close the user's connections, since what they joined may no longer be
theirs; a new secret closes none.
"""

import hmac
import logging
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from halfmq import limits
from halfmq.broker.offload import Offload
from halfmq.broker.peers.peer import Peer
from halfmq.broker.peers.peers import Peers
from halfmq.broker.peers.principal import Principal
from halfmq.broker.peers.shares import Shares, owner_of
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.pages import Page, page_of
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import Actor, RemoveUser, SetUser
from halfmq.core.decision import Failed, Refused, Reply, UserIsSet, UserRemoved, Why
from halfmq.errors import UsageError
from halfmq.model.share import share_of
from halfmq.model.users import EVERYTHING, Right, Scope, User, UserLimits, UserSecret, is_user_name, parse_permissions
from halfmq.runtime.entropy import Entropy
from halfmq.runtime.sealing import SecretsKey, hash_password, is_password

log = logging.getLogger("halfmq.users")

#: Makes the first administrator, and does nothing else.
FIRST: Final = "first-administrator"
_FIRST_PERMISSIONS: Final = ("administer:broker",)
_SECRET_BYTES: Final = 32
_CHANGES_MAX: Final = 64
_WHY: Final = Refused(Why.INVALID_PARAMETER, f"reason: one line of at most {limits.REASON_CHARS_MAX} characters")
_NOT_ANY_MORE: Final = Refused(Why.NO_PERMISSION, "who asked for this change may not administer the broker any more")
#: The thread has other work, too: a snapshot must not wait for a guesser.
_VERIFIED_AT_ONCE_MAX: Final = 4
NOBODY: Final = User((), "", ())


class Change(NamedTuple):
    """What an administrator wants of a user. None: as it is, or nothing for a new user."""

    user: str
    is_new: bool
    reason: str
    permissions: tuple[str, ...] | None
    limits: UserLimits | None
    #: "": one that the broker makes.
    secret: str | None
    old_secret_s: int
    #: "": none any more.
    password: str | None


class Changed(NamedTuple):
    """It is durable. ``secret``: the one that the broker made, or ""."""

    secret: str


class Listed(NamedTuple):
    """A user as administrators see it."""

    name: str
    user: User
    #: That are valid now.
    secrets: int
    connections: int


class Users:
    """The users of a broker that has them."""

    def __init__(
        self,
        sequencer: Sequencer,
        peers: Peers,
        key: SecretsKey,
        entropy: Entropy,
        time: BrokerTime,
        offload: Offload,
        forget_token: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """``forget_token``: called when the first administrator exists. ``clock``: monotonic, s.

        Raises:
            EnvironmentFailed: the key is not the one with which the secrets were sealed.
        """
        self._sequencer = sequencer
        self.view = sequencer.view
        self._peers = peers
        self._key = key
        self._entropy = entropy
        self._time = time
        self._offload = offload
        self._forget_token = forget_token
        self._clock = clock
        self._principals: dict[str, Principal] = {}
        #: By user: secrets in the clear, each with the broker time of its end, ms; 0: none.
        self._secrets: dict[str, tuple[tuple[bytes, int], ...]] = {}
        for name, user in self.view.users.items():
            self._know(name, user)
        #: Peers that proved who they are, by number.
        self._identified: dict[int, Principal] = {}
        self._verifying = Shares("passwords that are being verified")
        #: By user: keyed digest of the password that was verified last, and of what it was verified against.
        self._verified: dict[str, bytes] = {}
        self._digest_key = entropy.token(_SECRET_BYTES)
        #: Changes of users that are asked for, the first of them is under way.
        self._changing: deque[Callable[[], None]] = deque()
        self._changes = Shares("changes of users that wait")
        #: The secret of ``FIRST``; "": there are users.
        self.token = ""  # nosec B105 # none
        if not self.view.users:
            self.token = entropy.token(_SECRET_BYTES).hex()
            first = Principal(FIRST, only="HMQ_SET_USER")
            first.become(User((), "", _FIRST_PERMISSIONS))
            self._principals[FIRST] = first
            self._secrets[FIRST] = ((self.token.encode(), 0),)

    def nonce(self, nbytes: int) -> str:
        """Of a login."""
        return self._entropy.token(nbytes).hex()

    # --- who is it

    def secrets_of(self, name: str) -> list[bytes]:
        """The secrets of a user that are valid now; none if there is no such user."""
        now_ms = self._time.now_ms()
        return [secret for secret, until_ms in self._secrets.get(name, ()) if not until_ms or now_ms < until_ms]

    def identify(self, peer: Peer, name: str) -> Refused | None:
        """The peer has proved that it is this user; why it may not be, or None: it is from now on."""
        principal = self._principals[name]
        if peer.principal is principal:
            return None
        if peer.principal is not None:
            return Refused(Why.NO_PERMISSION, f"this connection is user {peer.principal.name!r}: open another one")
        own, all_ = principal.limits.connections, self._peers.places.connections_max
        if len(principal.connections) >= (own or share_of(all_)):
            text = f"user {name!r} has {own} connections, as many as it may (halfmq user set --connections)"
            if not own:
                text = (
                    f"user {name!r} has {share_of(all_)} of {all_} connections, as many as one user may (--connections-max, or "
                    "halfmq user set --connections)"
                )
            return Refused(Why.LIMIT_REACHED, text)
        peer.become(principal)
        self._identified[peer.number] = principal
        principal.connections.add(peer.number)
        wait_s = principal.wait_s(self._clock, 1)
        if wait_s:  # otherwise a new connection would have a request that the ones before used up
            peer.rest(wait_s)
        return None

    def gone(self, number: int) -> None:
        """The peer with this number has ended."""
        principal = self._identified.pop(number, None)
        if principal is not None:
            principal.connections.discard(number)

    def by_password(
        self, peer: Peer, name: str, password: str, answer: Callable[[Principal | Refused | None], None]
    ) -> None:
        """Who gives this password, or this secret, as the HTTP port takes it; None: nobody. A password is verified outside of the loop, a
        few at a time, since that takes long on purpose. One that was verified is known again: its owner does
        not wait for those who guess. Refusals: NOT_NOW.
        """
        given = password.encode()
        if any(hmac.compare_digest(secret, given) for secret in self.secrets_of(name)):
            answer(self._principals[name])
            return
        user = self.view.users.get(name)
        stored = user.password if user is not None else ""
        digest = hmac.digest(self._digest_key, f"{stored}\n{password}".encode(), "sha256")
        if not stored:
            answer(None)
        elif hmac.compare_digest(self._verified.get(name, b""), digest):
            answer(self._principals[name])
        elif busy := self._verifying.refusal(owner := owner_of(peer), _VERIFIED_AT_ONCE_MAX):
            answer(Refused(Why.NOT_NOW, f"{busy}: try again"))
        else:
            self._verifying.add(owner)

            def verified(found: object) -> None:
                self._verifying.add(owner, -1)
                is_user = found is True and self.view.users.get(name) is user
                if is_user:
                    self._verified[name] = digest
                answer(self._principals[name] if is_user else None)

            self._offload.run(lambda: is_password(password, stored), verified)

    # --- what administrators do

    def listed(self, rows_max: int, start: int) -> Page[Listed]:
        """A page of users, by name. The front door withholds it until it is durable."""
        return page_of(sorted(self.view.users), rows_max, start, self._listed)

    def _listed(self, name: str) -> Listed:
        connections = len(self._principals[name].connections) if name in self._principals else 0
        return Listed(name, self.view.users[name], len(self.secrets_of(name)), connections)

    def change(self, peer: Peer, change: Change, answer: Callable[[Changed | Refused | Failed], None]) -> None:
        """Make a user, or change one.

        Refusals: INVALID_PARAMETER; USER_EXISTS, NOT_FOUND; LIMIT_REACHED; NOT_NOW: nobody would be an administrator, or the secret
            would be sent where others can read it.
        """
        refused = self._refusal(peer, change)
        if refused is not None:
            answer(refused)
            return
        self._in_turn(peer, lambda done: self._begin(peer, change, done), answer)

    def _in_turn(
        self, peer: Peer, begin: Callable[[Callable[[Any], None]], None], answer: Callable[[Any], None]
    ) -> None:
        """Run ``begin`` after the changes that were asked for before: each begins with what the one before leaves, and asks again whether
        the peer may still do it.
        """
        owner = owner_of(peer)
        busy = self._changes.refusal(owner, _CHANGES_MAX)
        if busy is not None:
            answer(Refused(Why.NOT_NOW, f"{busy}: try again"))
            return

        def done(reply: Any) -> None:
            answer(reply)
            self._changes.add(owner, -1)
            self._changing.popleft()
            if self._changing:  # not at once: what this one changed takes effect after its response
                self._peers.call_later(0, self._changing[0])

        self._changes.add(owner)
        self._changing.append(lambda: begin(done))
        if len(self._changing) == 1:
            self._changing[0]()

    def _begin(self, peer: Peer, change: Change, answer: Callable[[Changed | Refused | Failed], None]) -> None:
        if not _administers(peer):  # not any more: it waited while others changed users
            answer(_NOT_ANY_MORE)
            return
        if not change.password:
            self._submit(peer, change, change.password, answer)
            return
        password = change.password

        def hashed(result: object) -> None:
            if isinstance(result, str):
                self._submit(peer, change, result, answer)
            else:
                answer(Failed(f"the password could not be stored: {result}"))

        self._offload.run(lambda: hash_password(password, self._entropy), hashed)

    def _refusal(self, peer: Peer, change: Change) -> Refused | None:
        if not is_user_name(change.user) or change.user == FIRST:
            return _invalid(f"{change.user[:100]!r} is no name for a user: up to 64 letters, digits and ._-")
        if not _is_line(change.reason):
            return _WHY
        try:
            _all_of(change.permissions or ())
        except UsageError as error:
            return _invalid(str(error))
        for what, secret in (("secret", change.secret), ("password", change.password)):
            if secret and len(secret) < limits.SECRET_CHARS_MIN:
                return _invalid(f"a {what} of fewer than {limits.SECRET_CHARS_MIN} characters")
            if secret is not None and not peer.is_private:
                text = f"the {what} of a user is not sent over the network without TLS: use rocketmqs://, or a shell on the broker's machine"
                return Refused(Why.NOT_NOW, text)
        if change.is_new and not peer.is_private:
            text = "the secret of a new user is not sent over the network without TLS: use rocketmqs://, or a shell on the broker's machine"
            return Refused(Why.NOT_NOW, text)
        return None

    def _submit(
        self, peer: Peer, change: Change, password: str | None, answer: Callable[[Changed | Refused | Failed], None]
    ) -> None:
        """``password``: hashed; None: as it is."""
        if not _administers(peer):
            answer(_NOT_ANY_MORE)
            return
        known = self.view.users.get(change.user)
        before = known if known is not None and not change.is_new else NOBODY
        secrets, made = before.secrets, ""
        if change.secret is not None or change.is_new:
            made = "" if change.secret else _new_secret(self._entropy)
            secret = (change.secret or made).encode()
            secrets = (UserSecret(self._key.seal(change.user, secret, self._entropy)), *self._kept(before, change))
        limits = before.limits if change.limits is None else change.limits
        user = User(
            secrets,
            before.password if password is None else password,
            before.permissions if change.permissions is None else _all_of(change.permissions),
            limits,
        )
        by = Actor(peer.user, change.reason, peer.address)

        def is_set(_: None, reply: Reply | Failed) -> None:
            if isinstance(reply, UserIsSet):
                log.warning("user %s from %s set user %s", by.name, by.peer, change.user)
                answer(Changed(made))
                self._changed(change.user)
            else:
                answer(reply if isinstance(reply, Refused | Failed) else Failed(f"unexpected {reply}"))

        self._sequencer.submit(SetUser(change.user, user, change.is_new, by), is_set)

    def _kept(self, before: User, change: Change) -> tuple[UserSecret, ...]:
        """The secret before the new one, while it stays valid."""
        if not before.secrets or not change.old_secret_s:
            return ()
        return (UserSecret(before.secrets[0].sealed, self._time.now_ms() + 1_000 * change.old_secret_s),)

    def remove(
        self, peer: Peer, name: str, reason: str, answer: Callable[[UserRemoved | Refused | Failed], None]
    ) -> None:
        """Remove a user, and close its connections. Refusals: NOT_FOUND; NOT_NOW: nobody else is an administrator."""
        if not _is_line(reason):
            answer(_WHY)
            return
        self._in_turn(peer, lambda done: self._remove(peer, name, reason, done), answer)

    def _remove(
        self, peer: Peer, name: str, reason: str, answer: Callable[[UserRemoved | Refused | Failed], None]
    ) -> None:
        if not _administers(peer):
            answer(_NOT_ANY_MORE)
            return
        by = Actor(peer.user, reason, peer.address)

        def removed(_: None, reply: Reply | Failed) -> None:
            if isinstance(reply, UserRemoved):
                log.warning("user %s from %s removed user %s", by.name, by.peer, name)
                answer(reply)
                self._changed(name)
            else:
                answer(reply if isinstance(reply, Refused | Failed) else Failed(f"unexpected {reply}"))

        self._sequencer.submit(RemoveUser(name, by), removed)

    # --- what is known

    def _know(self, name: str, user: User) -> Principal:
        principal = self._principals.setdefault(name, Principal(name))
        principal.become(user)
        self._secrets[name] = tuple(
            [(self._key.unseal(name, secret.sealed), secret.until_ms) for secret in user.secrets]
        )
        return principal

    def _changed(self, name: str) -> None:
        """A change of the user is durable, and its response is on the way."""
        user, principal = self.view.users.get(name), self._principals.get(name)
        if user is None:
            self._forget(name)
        else:
            before = None if principal is None else _demands(principal)
            principal = self._know(name, user)
            if before is not None and before != _demands(principal):
                self._close(principal)
        if self.token:
            self.token = ""  # nosec B105 # none
            self._forget_token()
            self._forget(FIRST)

    def _forget(self, name: str) -> None:
        self._secrets.pop(name, None)
        self._verified.pop(name, None)
        principal = self._principals.pop(name, None)
        if principal is not None:
            principal.become(NOBODY)
            self._close(principal)

    def _close(self, principal: Principal) -> None:
        """Close the connections of a user, after the responses that are queued."""
        for number in list(principal.connections):
            peer = self._peers.connected.get(number)
            if peer is not None:
                peer.close()


def _demands(principal: Principal) -> tuple[object, ...]:
    """What a change of makes the user connect again: what it joined may no longer be its own, and requests are counted or not."""
    return principal.permissions, bool(principal.limits.requests_per_s)


def _is_line(reason: str) -> bool:
    return len(reason) <= limits.REASON_CHARS_MAX and (not reason or reason.isprintable())


def _administers(peer: Peer) -> bool:
    return peer.is_open and peer.may(Right.ADMINISTER, Scope.BROKER, EVERYTHING)


def _all_of(texts: Iterable[str]) -> tuple[str, ...]:
    """The permissions that these texts mean, each once. Raises UsageError."""
    return tuple(dict.fromkeys([str(one) for text in texts for one in parse_permissions(text)]))


def _new_secret(entropy: Entropy) -> str:
    return urlsafe_b64encode(entropy.token(_SECRET_BYTES)).decode().rstrip("=")


def _invalid(text: str) -> Refused:
    return Refused(Why.INVALID_PARAMETER, text)
