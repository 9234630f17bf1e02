"""As little of Django as a shop needs."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "for an example only")
DEBUG = True
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "orders.views"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(__file__).with_name("shop.db"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # or a transaction that first reads and then writes may fail
    }
}
TIME_ZONE = "Europe/Rome"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
