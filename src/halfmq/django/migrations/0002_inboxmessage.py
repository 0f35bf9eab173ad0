"""The inbox as the admin lists it, and a name: no table, and no change of one."""

from typing import Any, ClassVar

from django.db import migrations, models

from halfmq.django.tables import INBOX_TABLE


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("halfmq", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="InboxMessage",
            fields=[
                ("message_key", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("consumer_group", models.CharField(max_length=120)),
                ("handled_at_ms", models.BigIntegerField()),
            ],
            options={
                "verbose_name": "handled message (inbox)",
                "verbose_name_plural": "handled messages (inbox)",
                "db_table": INBOX_TABLE,
                "managed": False,
            },
        ),
        migrations.AlterModelOptions(
            name="outboxmessage",
            options={
                "verbose_name": "message to publish (outbox)",
                "verbose_name_plural": "messages to publish (outbox)",
            },
        ),
    ]
