"""``/orders`` runs in the transaction of its request (ATOMIC_REQUESTS), ``/direct`` in none."""

import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from halfmq import django as mq
from tests.django.shop.models import Order

TOPIC = "orders"


@csrf_exempt
def orders(request: HttpRequest) -> HttpResponse:
    return place(request, durable=False)


@csrf_exempt
@transaction.non_atomic_requests(using="default")
@transaction.non_atomic_requests(using="other")
def direct(request: HttpRequest) -> HttpResponse:
    return place(request, durable=True)


def place(request: HttpRequest, *, durable: bool) -> HttpResponse:
    """Place the order ``note`` in the database ``using``. ``end``: how the request ends."""
    note, using, end = request.POST["note"], request.POST["using"], request.POST["end"]
    _be_killed(end)
    with mq.atomic(using, durable=durable) as tx:
        Order.objects.using(using).create(note=note)
        tx.send(TOPIC, note, key=note)
        if end == "killed in the block":
            _kill()
        if end == "raises in the block":
            raise RuntimeError(end)
    if end == "raises after the block":
        raise RuntimeError(end)
    if end == "killed after the block":
        _kill()
    return HttpResponse(tx.id)


def _kill(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def _be_killed(end: str) -> None:
    """A worker that is killed needs its client no more."""
    client: Any = mq.client()
    if end == "killed after prepare":
        client.prepare = _then_killed(client.prepare)
    elif end == "killed after COMMIT":
        client.commit = _kill
    elif end == "killed after the verdict":
        client.commit = _then_killed(client.commit)


def _then_killed(call: Callable[..., Any]) -> Callable[..., NoReturn]:
    def work(*args: Any, **named: Any) -> NoReturn:
        call(*args, **named)
        _kill()

    return work
