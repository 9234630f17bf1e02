"""One page: it takes an order, and queues the receipt in the same transaction."""

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from orders.models import Order
from orders.tasks import send_receipt


@csrf_exempt
def order(request: HttpRequest) -> HttpResponse:
    with transaction.atomic():
        made = Order.objects.create(customer=request.POST["customer"], cents=int(request.POST["cents"]))
        job = send_receipt.enqueue_in(connection, made.pk)
        if made.cents > 100_000:
            transaction.set_rollback(True)  # neither the order nor its job stays
            return HttpResponseBadRequest("we do not sell cars")
    return JsonResponse({"order": made.pk, "job": job.id})


urlpatterns = [path("order", order)]
