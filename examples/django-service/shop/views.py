from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from halfmq import django as mq
from shop.models import Order


@csrf_exempt
@transaction.non_atomic_requests  # the block below is the transaction, whose end decides about row and message
def orders(request: HttpRequest) -> JsonResponse:
    if request.method != "POST":
        return JsonResponse([*Order.objects.order_by("id").values_list("id", flat=True)], safe=False)
    with mq.atomic() as tx:
        order = Order.objects.create(item=request.POST["item"])
        tx.send("orders", {"id": order.pk, "item": order.item}, key=order.pk)
    return JsonResponse(order.pk, safe=False, status=201)
