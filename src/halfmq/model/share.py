"""How much of what all share one of them may have: three quarters, so that a flood of one does not refuse the work of the others.

*One* is a user; or, in a broker without users and for who has not said who it is, an address.
"""


def share_of(most: int) -> int:
    """What one may have of a maximum of ``most`` that all share."""
    return most - most // 4
