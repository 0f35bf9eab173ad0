"""What all peers share, and how much of it each user or address has: three quarters at most (``model.share``).

A peer that has proved whose it is counts as that user, over all its connections; any other one as its address. The refusal says what is
shared, how much of it there is, and who has it.
"""

from typing import Final

from halfmq.broker.peers.connection_admission import network_of
from halfmq.broker.peers.peer import Peer
from halfmq.model.share import share_of

_USER: Final = "user "


def owner_of(peer: Peer) -> str:
    """Whose the peer is now, as text: a user, or else an address. Keep it for ``Shares.add``: a peer may become a user's meanwhile."""
    if peer.user:
        return f"{_USER}{peer.user!r}"
    return f"address {network_of(peer.address.rpartition(':')[0]) or peer.address}"


class Shares:
    """One thing that all share: places, or bytes. The maximum is the caller's, and so is counting: ``add`` after each ``refusal``."""

    def __init__(self, what: str) -> None:
        """``what``: what is counted, in the plural."""
        self._what = what
        #: Of all.
        self.taken = 0
        self._of: dict[str, int] = {}

    def of(self, owner: str) -> int:
        """How much this one has."""
        return self._of.get(owner, 0)

    def refusal(self, owner: str, most: int, more: int = 1) -> str | None:
        """Why this one may not have ``more`` of ``most``; None if it may. Without the advice to try again."""
        mine, one = self._of.get(owner, 0), share_of(most)
        if mine + more > one:
            kind = "user" if owner.startswith(_USER) else "address"
            return f"{owner} has {mine} of {most} {self._what}, and one {kind} may have {one}"
        if self.taken + more > most:
            largest = max(self._of, key=self._of.__getitem__, default="nobody")
            return f"there are {self.taken} of {most} {self._what}, {self.of(largest)} of them of {largest}"
        return None

    def add(self, owner: str, more: int = 1) -> None:
        """This one has ``more`` now; negative: less."""
        self.taken += more
        amount = self._of.pop(owner, 0) + more
        if amount:
            self._of[owner] = amount
