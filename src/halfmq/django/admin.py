"""The tables in Django's admin, to look at. halfmq alone changes them: a row that somebody adds, changes or deletes would break what it
promises. Django imports this where ``django.contrib.admin`` is installed.

It shows the database that is chosen among those of HALFMQ["DATABASES"]; before that, the one of the default alias or of DATABASE_ROUTERS.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from halfmq.django.configuration import configuration
from halfmq.django.models import InboxMessage, Marker, OutboxLane, OutboxMessage
from halfmq.errors import UsageError
from halfmq.sql.rules.marker import COMMITTED, FENCED, PREPARED
from halfmq.sql.rules.outbox import Delivery
from halfmq.sql.rules.table_identity import RESERVED

#: What the outcome of a marker means.
MEANING_OF_OUTCOME: Final[Mapping[str, str]] = {
    COMMITTED: "committed: its messages are visible, or become so",
    FENCED: "rolled back: a check found no marker, so that it cannot commit any more",
    PREPARED: "open: it runs, or its block has ended without COMMIT",
}
#: What the delivery of an outbox message means.
MEANING_OF_DELIVERY: Final[Mapping[str, str]] = {
    Delivery.HELD: "held: the application confirms or withdraws it",
    Delivery.WAITING: "waiting: a relay publishes it",
    Delivery.SCHEDULED: "scheduled: published when it is due",
    Delivery.RETRYING: "retrying: the target has rejected it; tried again when it is due",
    Delivery.BEHIND: "behind an earlier message with its sharding key",
    Delivery.SET_ASIDE: "set aside: rejected too often; `halfmq outbox` retries or skips it",
    Delivery.PUBLISHED: "published, and kept",
    Delivery.SKIPPED: "skipped: never published",
}
#: Bytes of a body that are shown.
_SHOWN_MAX: Final = 10_000


def shown_time(ms: int) -> datetime | None:
    """A column with a time, ms since 1970; None: it has none."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _databases() -> tuple[str, ...]:
    try:
        return configuration().databases
    except UsageError:  # the system checks say so
        return ()


class _ByDatabase(admin.SimpleListFilter):
    """Chooses the database, where there are several; ``ReadOnly.get_queryset`` reads it."""

    title = parameter_name = "database"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        aliases = _databases()
        return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class ReadOnly(admin.ModelAdmin):
    """Looking only, whatever permissions a user has beyond that."""

    actions = None
    list_filter: Any = (_ByDatabase,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Of the database that the list shows, also on the page of one row, to which the list hands its filters on."""
        found: QuerySet[Any] = super().get_queryset(request)
        filters = parse_qs(request.GET.get("_changelist_filters", ""))
        alias = request.GET.get(_ByDatabase.parameter_name) or filters.get(_ByDatabase.parameter_name, [""])[0]
        return found.using(alias) if alias in _databases() else found

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes rows: `manage.py halfmq_prune` does."""
        return False


class _ByCode(admin.SimpleListFilter):
    """A filter whose choices say what a column of one letter means."""

    meanings: ClassVar[Mapping[str, str]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(code), meaning.partition(":")[0]) for code, meaning in self.meanings.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(**{f"{self.parameter_name}": chosen}) if chosen else queryset


class _ByOutcome(_ByCode):
    title = "outcome"
    parameter_name = "outcome"
    meanings = MEANING_OF_OUTCOME


class _ByDelivery(_ByCode):
    title = "state"
    parameter_name = "delivery"
    meanings = MEANING_OF_DELIVERY


@admin.register(Marker)
class MarkerAdmin(ReadOnly):
    """A row for each transaction of ``mq.atomic``."""

    list_display = ("tx_id", "meaning", "written_at")
    list_filter = (_ByDatabase, _ByOutcome)
    search_fields = ("=tx_id",)
    ordering = ("-written_at_ms",)
    show_full_result_count = False
    fields = ("tx_id", "meaning", "written_at")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Marker]:
        """Without the two rows about the table itself."""
        return super().get_queryset(request).exclude(tx_id__in=RESERVED)

    @admin.display(description="outcome", ordering="outcome")
    def meaning(self, row: Marker) -> str:
        """What the marker means."""
        return MEANING_OF_OUTCOME.get(row.outcome, row.outcome)

    @admin.display(description="written at", ordering="written_at_ms")
    def written_at(self, row: Marker) -> datetime | None:
        """When the transaction wrote it."""
        return shown_time(row.written_at_ms)


@admin.register(InboxMessage)
class InboxAdmin(ReadOnly):
    """A row for each message that a consumer has handled."""

    list_display = ("consumer_group", "message_key", "handled_at")
    list_display_links = None
    search_fields = ("=message_key",)
    ordering = ("-handled_at_ms",)
    show_full_result_count = False

    @admin.display(description="handled at", ordering="handled_at_ms")
    def handled_at(self, row: InboxMessage) -> datetime | None:
        """When its row was written, in the transaction of its handler."""
        return shown_time(row.handled_at_ms)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> None:
        """None: the key alone names no row, and the list has all that a row has."""
        return


@admin.register(OutboxMessage)
class OutboxAdmin(ReadOnly):
    """A row for each message of ``mq.send_on_commit`` that is not published yet."""

    list_display = ("message_id", "topic", "state", "order_key", "attempts", "written_at", "due_at", "reason")
    list_filter = (_ByDatabase, _ByDelivery)
    search_fields = ("=message_id", "=tx_id")
    ordering = ("-seq",)
    show_full_result_count = False
    fields = (
        "message_id", "topic", "state", "reason", "attempts", "order_key", "tx_id", "written_at", "due_at", "published_at", "text",
    )  # fmt: skip
    readonly_fields = fields

    @admin.display(description="state", ordering="delivery")
    def state(self, row: OutboxMessage) -> str:
        """What the state means."""
        return MEANING_OF_DELIVERY.get(row.delivery, row.delivery)

    @admin.display(description="written at", ordering="seq")
    def written_at(self, row: OutboxMessage) -> datetime | None:
        """When the transaction wrote it."""
        return shown_time(row.written_at_ms)

    @admin.display(description="due at, or ended at")
    def due_at(self, row: OutboxMessage) -> datetime | None:
        """Before this it is not published; of one that is published or skipped, when that was."""
        return shown_time(row.due_at_ms)

    @admin.display(description="published at")
    def published_at(self, row: OutboxMessage) -> datetime | None:
        """When the target has confirmed it."""
        return shown_time(row.published_at_ms)

    @admin.display(description="body")
    def text(self, row: OutboxMessage) -> str:
        """The body as text, if it is long its beginning."""
        body = bytes(row.body)
        shown = body[:_SHOWN_MAX].decode(errors="backslashreplace") + ("..." if len(body) > _SHOWN_MAX else "")
        return format_html("<pre>{}</pre>", shown)


@admin.register(OutboxLane)
class LaneAdmin(ReadOnly):
    """The lanes of the outbox, each of which one relay holds at a time."""

    list_display = ("lane", "holder", "lease_until")
    fields = ("lane", "holder", "lease_until", "batch_id")
    readonly_fields = fields

    @admin.display(description="held until", ordering="lease_until_ms")
    def lease_until(self, row: OutboxLane) -> datetime | None:
        """When the lease ends; empty: nobody holds it."""
        return shown_time(row.lease_until_ms)
