"""The operator behind an action: a name and a reason for the audit record (decision 0035), validated before they reach the log."""

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.core.commands import Actor
from halfmq.core.decision import Refused, Why


def actor(peer: Peer, operator: str, reason: str, does: str) -> Actor | Refused:
    """``does``: what the operator does, as the refusal words it: "who decides". In a broker with users the name is the user's.

    Both must be single printable lines: they appear in log lines, which nobody may forge.
    """
    name, why = peer.user or operator.strip(), reason.strip()
    if not name or len(name) > limits.OPERATOR_CHARS_MAX or not name.isprintable():
        return _refused(f"operator: {does}, 1 to {limits.OPERATOR_CHARS_MAX} characters")
    if len(why) > limits.REASON_CHARS_MAX or not why.isprintable():
        return _refused(f"reason: one line of at most {limits.REASON_CHARS_MAX} characters")
    return Actor(name, why, peer.address)


def actor_with_reason(peer: Peer, operator: str, reason: str, does: str) -> Actor | Refused:
    """``actor`` for what cannot be undone: it needs a reason. ``does``: after "who" and "why", as in "lets the broker forget it"."""
    by = actor(peer, operator, reason, f"who {does}")
    return by if isinstance(by, Refused) or by.reason else _refused(f"reason: why one {does}")


def _refused(text: str) -> Refused:
    return Refused(Why.INVALID_PARAMETER, text)
