"""``place.py NOTE USING`` places one order, outside of a request."""

import sys

import django

django.setup()

from halfmq import django as mq  # noqa: E402
from tests.django.shop.models import Order  # noqa: E402
from tests.django.shop.views import TOPIC  # noqa: E402

_, note, using = sys.argv
with mq.atomic(using) as tx:
    Order.objects.using(using).create(note=note)
    tx.send(TOPIC, f"{using} {note}", key=note)
