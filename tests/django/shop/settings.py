"""A project for the tests. Its databases and its broker are in the environment, since each test has others."""

import json
import os

SECRET_KEY = "of-the-tests"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["halfmq.django", "tests.django.shop"]
DATABASES = json.loads(
    os.environ.get("SHOP_DATABASES", '{"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}')
)
for _values in DATABASES.values():
    _values["ATOMIC_REQUESTS"] = os.environ.get("SHOP_ATOMIC_REQUESTS") == "1"
HALFMQ = {
    "URL": os.environ.get("SHOP_BROKER", "rocketmq://127.0.0.1:1"),
    "GROUP": "shop",
    "DATABASES": list(DATABASES),
    "ANSWER_CHECKS": os.environ.get("SHOP_ANSWER_CHECKS", "1") == "1",
}
ROOT_URLCONF = "tests.django.shop.urls"
USE_TZ = True
#: A response with status 500 says why: without DEBUG, Django would mail it.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR"}},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
if any(values["ENGINE"].endswith("mysql") for values in DATABASES.values()):
    from tests.django.shop import mysql_driver

    mysql_driver.install()
