"""``/orders`` runs in the transactions of its request (ATOMIC_REQUESTS), ``/direct`` in none."""

import os
import signal
from contextlib import ExitStack

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from halfmq import django as mq
from halfmq.testing.crashes import TRANSACTION_POINTS, _Kill
from tests.django.shop.models import Order

TOPIC = "orders"
#: Holds the point of the kill for as long as the process lives.
_kill = ExitStack()


@csrf_exempt
def orders(request: HttpRequest) -> HttpResponse:
    return place(request, durable=False)


@csrf_exempt
@transaction.non_atomic_requests(using="default")
@transaction.non_atomic_requests(using="other")
def direct(request: HttpRequest) -> HttpResponse:
    return place(request, durable=True)


def place(request: HttpRequest, *, durable: bool) -> HttpResponse:
    """Place the order ``note`` in each database of ``using``, in blocks within each other. ``end``: how the request ends; a point of
    ``TRANSACTION_POINTS``: the process is killed there, in the first block that comes to it."""
    note, end = request.POST["note"], request.POST["end"]
    if end in TRANSACTION_POINTS:
        _kill.enter_context(_Kill(end).installed())
    with ExitStack() as blocks:
        for using in request.POST["using"].split():
            tx = blocks.enter_context(mq.atomic(using, durable=durable))
            Order.objects.using(using).create(note=note)
            tx.send(TOPIC, f"{using} {note}", key=note)
        if end == "killed in the block":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "raises in the block":
            raise RuntimeError(end)
    if end == "raises after the block":
        raise RuntimeError(end)
    if end == "killed after the block":
        os.kill(os.getpid(), signal.SIGKILL)
    return HttpResponse(tx.id)
