"""Found by ``manage.py halfmq_worker``. The environment says what a test wants of a handler."""

import os
import signal
import uuid
from pathlib import Path

from django.db import transaction

from halfmq import django as mq
from tests.django.shop.models import Order
from tests.support.waiting import wait_until


def bill_again(note: str) -> None:
    mq.send_on_commit("not-billed", note)


@mq.consumer("to-bill", group="billing", retries=0, on_dead=bill_again)
def bill(note: str) -> None:
    """Writes an order of another note each time it is called, so that the orders say how often that was."""
    Order.objects.create(note=f"{note} {uuid.uuid4().hex[:12]}")
    mq.send_on_commit("billed", note)
    if note == "refused":
        raise RuntimeError("no card")
    if note.startswith("kills") and (killed := Path(os.environ["SHOP_KILLED"])) and not killed.exists():
        # Behind COMMIT, before the message is acknowledged.
        transaction.on_commit(lambda: (killed.touch(), os.kill(os.getpid(), signal.SIGKILL)))


@mq.consumer("to-stock", group="stock")
def stock(note: str) -> None:
    """Takes until the test lets it end."""
    Order.objects.create(note=f"begun {note}")
    Path(os.environ["SHOP_BEGUN"]).touch()
    wait_until(Path(os.environ["SHOP_GOES_ON"]).exists, "the test")
