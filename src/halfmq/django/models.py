"""The tables of halfmq as models, to look at: halfmq writes them itself. ``tables`` has their statements."""

from django.db import models

from halfmq.django.tables import INBOX_TABLE, LANES_TABLE, MARKERS_TABLE, OUTBOX_TABLE


class Marker(models.Model):
    """One local transaction that sends messages. Two rows, whose ids begin with ``#``, are about the table itself."""

    tx_id = models.CharField(max_length=64, primary_key=True)
    outcome = models.CharField(max_length=1, choices=[("P", "prepared"), ("C", "committed"), ("R", "rolled back")])
    written_at_ms = models.BigIntegerField()

    class Meta:
        db_table = MARKERS_TABLE
        verbose_name = "transaction marker"

    def __str__(self) -> str:
        return f"{self.tx_id} {self.outcome}"


class Handled(models.Model):
    """The inbox: a message that a consumer group has handled."""

    pk = models.CompositePrimaryKey("consumer_group", "message_key")
    consumer_group = models.CharField(max_length=120)
    message_key = models.CharField(max_length=255)
    handled_at_ms = models.BigIntegerField()

    class Meta:
        db_table = INBOX_TABLE
        verbose_name = "handled message"

    def __str__(self) -> str:
        return f"{self.consumer_group} {self.message_key}"


class InboxMessage(models.Model):
    """The rows of ``Handled`` for the admin, which takes no model with a key of two columns. Its key is not unique: only to be listed."""

    message_key = models.CharField(max_length=255, primary_key=True)
    consumer_group = models.CharField(max_length=120)
    handled_at_ms = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = INBOX_TABLE
        verbose_name = "handled message (inbox)"
        verbose_name_plural = "handled messages (inbox)"

    def __str__(self) -> str:
        return f"{self.consumer_group} {self.message_key}"


class OutboxMessage(models.Model):
    """A message that a relay publishes."""

    seq = models.BigAutoField(primary_key=True)
    lane = models.SmallIntegerField()
    delivery = models.CharField(max_length=1)
    outcome = models.CharField(max_length=1)
    order_key = models.CharField(max_length=255)
    message_id = models.CharField(max_length=64)
    tx_id = models.CharField(max_length=64)
    topic = models.CharField(max_length=255)
    properties = models.BinaryField()
    body = models.BinaryField()
    written_at_ms = models.BigIntegerField()
    attempts = models.IntegerField()
    due_at_ms = models.BigIntegerField()
    published_at_ms = models.BigIntegerField()
    reason = models.CharField(max_length=500)

    class Meta:
        db_table = OUTBOX_TABLE
        verbose_name = "message to publish (outbox)"
        verbose_name_plural = "messages to publish (outbox)"

    def __str__(self) -> str:
        return f"{self.seq} {self.topic}"


class OutboxLane(models.Model):
    """A part of the outbox, which one relay holds at a time."""

    lane = models.SmallIntegerField(primary_key=True)
    token = models.CharField(max_length=32)
    holder = models.CharField(max_length=255)
    lease_until_ms = models.BigIntegerField()
    batch_id = models.CharField(max_length=64)
    batch_seqs = models.TextField()
    one_by_one_to_seq = models.BigIntegerField()

    class Meta:
        db_table = LANES_TABLE
        verbose_name = "outbox lane"

    def __str__(self) -> str:
        return str(self.lane)
