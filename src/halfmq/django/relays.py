"""The relays of ``manage.py halfmq_relay``: one for the outbox of each database, to the broker of the setting HALFMQ."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Unpack

from halfmq.client.arguments import OutboxRelayOptions
from halfmq.client.async_client import AsyncClient
from halfmq.client.marker_table import BoundRelay
from halfmq.django.configuration import Configuration
from halfmq.django.tables import OUTBOX_TABLE


@contextmanager
def relays_of(
    wanted: Configuration, databases: Sequence[str], **options: Unpack[OutboxRelayOptions]
) -> Iterator[list[BoundRelay]]:
    """A relay for each alias of ``databases``, to be run once in the block. Nothing is connected yet. ``options``: those of
    ``halfmq.sql.Outbox.relay``.

    Raises:
        MissingDependency: SQLAlchemy is not installed. UsageError: an option is wrong.
    """
    from halfmq.sql import Outbox

    outbox = Outbox.named(OUTBOX_TABLE)

    from halfmq.django.relay_engine import engine_of

    # Never opened: the publisher has a client of its own, in the group GROUP-relay.
    client = AsyncClient(wanted.url, group=wanted.group, **wanted.options)
    with ExitStack() as ends:
        relays: list[BoundRelay] = []
        for using in databases:
            engine = engine_of(using)
            ends.callback(engine.dispose)
            relays.append(outbox.bind_relay(client, engine, **options))
        yield relays
