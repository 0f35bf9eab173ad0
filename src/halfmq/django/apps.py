"""The application that ``INSTALLED_APPS`` names."""

from typing import Any

from django.apps import AppConfig
from django.core.signals import request_started, setting_changed
from django.db.models.signals import post_migrate


class HalfmqConfig(AppConfig):
    """``"halfmq.django"`` in ``INSTALLED_APPS``."""

    name = "halfmq.django"
    label = "halfmq"
    verbose_name = "halfmq"

    def ready(self) -> None:
        from halfmq.django import inherited_connections, system_checks  # noqa: F401 - register what they do
        from halfmq.django.process import begin_to_answer
        from halfmq.django.transaction_end import watch_all

        watch_all()
        post_migrate.connect(_fill, sender=self)
        # Not here: what loads the application may fork afterwards (gunicorn --preload), or only be a command.
        request_started.connect(begin_to_answer, dispatch_uid="halfmq.begin_to_answer")
        setting_changed.connect(_close_client, dispatch_uid="halfmq.close_client")


def _fill(*, using: str, **_: Any) -> None:
    """The rows that the tables have from the beginning; also after ``flush``, which a TransactionTestCase does."""
    from halfmq.django.database import table_exists
    from halfmq.django.markers import markers_of
    from halfmq.django.tables import MARKERS_TABLE

    if table_exists(using, MARKERS_TABLE):
        markers_of(using).rows.establish_again()


def _close_client(*, setting: str, **_: Any) -> None:
    """A test has overridden the setting, or its override has ended: the next use makes a client for what it says now."""
    if setting == "HALFMQ":
        from halfmq.django.process import close

        close()
