"""halfmq in Django: one outcome for ``transaction.atomic`` and the messages that are sent in it.

    INSTALLED_APPS = [..., "halfmq.django"]
    HALFMQ = {"URL": "rocketmq://127.0.0.1:9876", "GROUP": "orders"}

    with mq.atomic() as tx:                                # transaction.atomic(durable=True) underneath
        order = Order.objects.create(...)
        tx.send("order-created", {"id": order.pk})

    with transaction.atomic():
        order = Order.objects.create(...)
        mq.send_on_commit("order-created", {"id": order.pk})   # as a row, which `manage.py halfmq_relay` publishes

``from halfmq import django as mq``. ``client`` is the process's client, which also answers the broker's checks from the marker table.
Needs the extra ``halfmq[django]``; the tables are made by ``manage.py migrate``.

Names are imported lazily: Django imports this package before its settings are ready.

Raises:
    MissingDependency: Django is not installed.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmq.django.block import atomic
    from halfmq.django.consumers import consumer
    from halfmq.django.outbox import send_on_commit
    from halfmq.django.process import client

if find_spec("django") is None:
    from halfmq.errors import MissingDependency

    raise MissingDependency("django is not installed", hint="pip install 'halfmq[django]'")

__all__ = ["atomic", "client", "consumer", "send_on_commit"]

_WHERE = {"atomic": "block", "client": "process", "consumer": "consumers", "send_on_commit": "outbox"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
