"""The tables of the shop, and the outbox of its jobs."""

from typing import ClassVar

from django.db import migrations, models

from windlass import OUTBOX_TABLE

ID = ("id", models.BigAutoField(primary_key=True))


class Migration(migrations.Migration):
    """As `manage.py makemigrations` writes it, but for the last line."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            "Order",
            [
                ID,
                ("customer", models.EmailField(max_length=254)),
                ("cents", models.PositiveIntegerField()),
                ("receipt", models.TextField(default="")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            "Report", [ID, ("day", models.DateField(unique=True)), ("cents", models.PositiveIntegerField())]
        ),
        migrations.RunSQL(OUTBOX_TABLE, "DROP TABLE windlass_outbox"),
    ]
