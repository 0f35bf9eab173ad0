import os
import secrets
from pathlib import Path

HERE = Path(__file__).parent.parent
SECRET_KEY = os.environ.get("SECRET_KEY") or secrets.token_urlsafe()  # without the first, each process has its own
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
INSTALLED_APPS = ["halfmq.django", "shop"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", HERE / "shop.db"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        "ATOMIC_REQUESTS": True,
        "TEST": {"NAME": HERE / "test.db"},  # a file, since checks are answered by a thread of their own
    }
}
HALFMQ = {"URL": os.environ.get("HALFMQ_URL", "rocketmq://127.0.0.1:9876"), "GROUP": "shop"}
