"""What the shop does in the background: a receipt for each order, and every night a report."""

from collections.abc import Generator
from datetime import timedelta

from django.db import close_old_connections, models
from django.utils import timezone

from orders.models import Order, Report
from windlass import RunningJob, TaskOutcome, Windlass

app = Windlass()


@app.around
def with_own_connection(_: RunningJob) -> Generator[None, TaskOutcome, None]:
    """As Django does after each request."""
    yield
    close_old_connections()


@app.task(max_retry=5)
def send_receipt(order: int) -> None:
    found = Order.objects.get(pk=order)
    found.receipt = f"{found.customer} has paid {found.cents / 100:.2f} €"
    found.save(update_fields=["receipt"])


@app.cron("0 3 * * *", tz="Europe/Rome")
def report() -> None:
    """Yesterday's sales. Run twice, it is the same report."""
    day = timezone.localdate() - timedelta(days=1)
    sold = Order.objects.filter(created_at__date=day).aggregate(cents=models.Sum("cents", default=0))
    Report.objects.update_or_create(day=day, defaults=sold)
