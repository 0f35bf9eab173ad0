"""What a request does, and to what: every front door says it of each of its requests, so that one rule can decide who may."""

from enum import Enum
from typing import Final, NamedTuple


class Action(Enum):
    """What a request does."""

    #: Shows something, and changes nothing.
    READ = "read"
    #: Stores messages, half messages and half batches.
    SEND = "send"
    #: Fetches messages as a group, and says how far the group is.
    CONSUME = "consume"
    #: Joins groups, or leaves them.
    JOIN = "join"
    #: Settles transactions and batches, as their application or coordinator.
    DECIDE = "decide"
    #: What operators do, whether it changes topics and groups or somebody else's transactions.
    OPERATE = "operate"


class Resource(Enum):
    """What it is about."""

    TOPIC = "topic"
    #: Of consumers or of producers.
    GROUP = "group"
    #: A transaction, with its group if the request names one.
    TRANSACTION = "transaction"
    #: An application with numbered batches.
    QUERY = "query"
    #: Somebody else's coordinator, of a producer group.
    COORDINATOR = "coordinator"
    #: A stored message, by its log offset: its topic is known once it was read.
    MESSAGE = "message"


#: The name is in the body, as its handler reads it; there may be several.
IN_BODY: Final[tuple[str, ...]] = ()


class Named(NamedTuple):
    """A resource, and the fields of the request that name it together. Their struct says whether an empty one names none or all."""

    resource: Resource
    by: tuple[str, ...]


class Access(NamedTuple):
    """``named``: everything that the request names; nothing: it is about the broker."""

    action: Action
    named: tuple[Named, ...] = ()

    def of(self, *named: Named) -> "Access":
        """The same action on these."""
        return Access(self.action, named)
