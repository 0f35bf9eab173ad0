"""Clients for halfmq and Apache RocketMQ. The public names are those of ``halfmq``.

    async_client.py  AsyncClient         sync.py faces.py  Client, the blocking facade over it      app.py  App: decorators
    shapes.py handler.py key_order.py    what is decorated, and how it is called
    producer.py request_reply.py         plain sends, requests     prepare.py transaction.py verdicts.py   halves and verdicts
    coordinator.py xid.py                somebody else's coordinator                halfmq_requests.py   what only halfmq brokers answer
    consumer.py group_member.py start_position.py queue_puller.py offset_tracker.py allocation.py   consuming
    redelivery_timers.py                                                                   what is handled again in this process, and when
    check_listener.py fetched_checks.py listener.py transaction_block.py marker_table.py                  checks; seams for users and sql
    connection.py pending.py connection_pool.py membership.py routing.py retry.py refusals.py                   the network
    connector.py blocking.py                                                               sockets, and the blocking network
    credentials.py login.py                                                                who a client is, and how it says so
    telemetry.py traced.py                                                                 spans and metrics, if they are asked for
    forks.py                                                                               what a forked child may do

Importing this package imports nothing else; public names are loaded when they are asked for.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import halfmq

    if name == "__all__":
        return [public for public, module in halfmq.MODULES.items() if module.startswith("client.")]
    if not halfmq.MODULES.get(name, "").startswith("client."):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(halfmq, name)
