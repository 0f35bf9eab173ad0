"""The admin: tests/django/shop/admin_cases.py under Django's own runner, which makes the tables by the migrations."""

import json
import os
import subprocess
import sys

from tests.support.waiting import PATIENCE_S

_DATABASES = json.dumps(
    {name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "other")}
)


def test_the_tables_can_be_looked_at_and_not_changed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.django.shop.manage", "test", "tests.django.shop", "--pattern", "admin_cases.py",
         "--settings", "tests.django.shop.admin_settings"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.django.shop.admin_settings", "SHOP_DATABASES": _DATABASES},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    assert "Ran 9 tests" in done.stderr
