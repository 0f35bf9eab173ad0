"""The operator behind an action: a name and a reason for the audit record (decision 0035), validated before they reach the log."""

from halfmq import limits
from halfmq.broker.services.peer import Peer
from halfmq.core.commands import Actor
from halfmq.core.decision import Refused, Why


def actor(peer: Peer, operator: str, reason: str, does: str) -> Actor | Refused:
    """``does``: what the operator does, as the refusal words it: "who decides".

    Both must be single printable lines: they appear in log lines, which nobody may forge.
    """
    name, why = operator.strip(), reason.strip()
    if not name or len(name) > limits.OPERATOR_CHARS_MAX or not name.isprintable():
        return _refused(f"operator: {does}, 1 to {limits.OPERATOR_CHARS_MAX} characters")
    if len(why) > limits.REASON_CHARS_MAX or not why.isprintable():
        return _refused(f"reason: one line of at most {limits.REASON_CHARS_MAX} characters")
    return Actor(name, why, peer.address)


def _refused(text: str) -> Refused:
    return Refused(Why.INVALID_PARAMETER, text)
