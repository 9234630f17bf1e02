"""What the worker imports: `windlass worker worker:app --outbox shop.db`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from orders.tasks import app  # noqa: E402, F401 - models are there only now; the worker looks for it here
