"""Orders, and what became of them."""

from django.db import models


class Order(models.Model):
    """One order of a customer."""

    customer = models.EmailField()
    cents = models.PositiveIntegerField()
    receipt = models.TextField(default="")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.customer}"


class Report(models.Model):
    """What was sold on one day."""

    day = models.DateField(unique=True)
    cents = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.day}: {self.cents / 100:.2f} €"
