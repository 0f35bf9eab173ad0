"""Marker table, inbox and outbox, with the statements of ``halfmq.django.tables``."""

from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import migrations, models

from halfmq.django.tables import INBOX_TABLE, LANES_TABLE, MARKERS_TABLE, OUTBOX_TABLE, VENDORS, statements


def _create(_apps: Any, schema_editor: Any) -> None:
    vendor = schema_editor.connection.vendor
    if vendor not in VENDORS:
        raise ImproperlyConfigured(
            f"halfmq has no tables for {vendor}; DATABASE_ROUTERS may keep the app `halfmq` away from it"
        )
    for statement in statements(vendor):
        schema_editor.execute(statement, params=None)


def _drop(_apps: Any, schema_editor: Any) -> None:
    for table in (LANES_TABLE, OUTBOX_TABLE, INBOX_TABLE, MARKERS_TABLE):
        schema_editor.execute(f"DROP TABLE {table}", params=None)


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(_create, _drop)],
            state_operations=[
                migrations.CreateModel(
                    name="Marker",
                    fields=[
                        ("tx_id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                        (
                            "outcome",
                            models.CharField(
                                choices=[("P", "prepared"), ("C", "committed"), ("R", "rolled back")], max_length=1
                            ),
                        ),
                        ("written_at_ms", models.BigIntegerField()),
                    ],
                    options={"verbose_name": "transaction marker", "db_table": MARKERS_TABLE},
                ),
                migrations.CreateModel(
                    name="Handled",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "consumer_group",
                                "message_key",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("consumer_group", models.CharField(max_length=120)),
                        ("message_key", models.CharField(max_length=255)),
                        ("handled_at_ms", models.BigIntegerField()),
                    ],
                    options={"verbose_name": "handled message", "db_table": INBOX_TABLE},
                ),
                migrations.CreateModel(
                    name="OutboxMessage",
                    fields=[
                        ("seq", models.BigAutoField(primary_key=True, serialize=False)),
                        ("lane", models.SmallIntegerField()),
                        ("delivery", models.CharField(max_length=1)),
                        ("outcome", models.CharField(max_length=1)),
                        ("order_key", models.CharField(max_length=255)),
                        ("message_id", models.CharField(max_length=64)),
                        ("tx_id", models.CharField(max_length=64)),
                        ("topic", models.CharField(max_length=255)),
                        ("properties", models.BinaryField()),
                        ("body", models.BinaryField()),
                        ("written_at_ms", models.BigIntegerField()),
                        ("attempts", models.IntegerField()),
                        ("due_at_ms", models.BigIntegerField()),
                        ("published_at_ms", models.BigIntegerField()),
                        ("reason", models.CharField(max_length=500)),
                    ],
                    options={"verbose_name": "outbox message", "db_table": OUTBOX_TABLE},
                ),
                migrations.CreateModel(
                    name="OutboxLane",
                    fields=[
                        ("lane", models.SmallIntegerField(primary_key=True, serialize=False)),
                        ("token", models.CharField(max_length=32)),
                        ("holder", models.CharField(max_length=255)),
                        ("lease_until_ms", models.BigIntegerField()),
                        ("batch_id", models.CharField(max_length=64)),
                        ("batch_seqs", models.TextField()),
                        ("one_by_one_to_seq", models.BigIntegerField()),
                    ],
                    options={"verbose_name": "outbox lane", "db_table": LANES_TABLE},
                ),
            ],
        )
    ]
