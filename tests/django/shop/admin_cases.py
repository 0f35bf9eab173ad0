"""The tables in the admin; run by Django's own runner, with migrations: tests/django/test_admin.py."""

import re
import time

from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import TestCase, override_settings

from halfmq.django import send_on_commit
from halfmq.django.models import Handled, Marker, OutboxLane, OutboxMessage
from halfmq.sql.rules.table_identity import RESERVED

NOW_MS = time.time_ns() // 1_000_000
ALL = ("marker", "inboxmessage", "outboxmessage", "outboxlane")


class Case(TestCase):
    def setUp(self) -> None:
        self.user = User.objects.create_superuser("operator")
        self.client.force_login(self.user)

    def page(self, path: str, status: int = 200) -> str:
        response = self.client.get(f"/admin/{path}")
        assert response.status_code == status, (path, response.status_code)
        return response.content.decode()


class Looking(Case):
    def test_the_index_names_them(self) -> None:
        page = self.page("")
        for name in ("Transaction markers", "Handled messages (inbox)", "Messages to publish (outbox)", "Outbox lanes"):
            assert name in page, name

    def test_markers_say_what_they_mean_and_those_about_the_table_are_left_out(self) -> None:
        assert set(Marker.objects.values_list("tx_id", flat=True)) == set(RESERVED)
        for key, outcome in (("tx-c", "C"), ("tx-r", "R"), ("tx-p", "P")):
            Marker.objects.create(tx_id=key, outcome=outcome, written_at_ms=NOW_MS)
        page = self.page("halfmq/marker/")
        for text in (
            "tx-c",
            "tx-r",
            "tx-p",
            "committed: its messages",
            "rolled back: a check",
            "open: it runs",
            "3 transaction markers",
        ):
            assert text in page, text
        assert "#identity" not in page
        chosen = self.page("halfmq/marker/?outcome=R")
        assert "tx-r" in chosen
        assert "tx-c" not in chosen
        assert "tx-c" in self.page("halfmq/marker/?q=tx-c")
        detail = self.page("halfmq/marker/tx-c/change/")
        assert "committed: its messages" in detail
        assert 'type="submit"' not in detail.partition('id="content"')[2]

    def test_a_message_that_two_groups_have_handled_is_there_twice(self) -> None:
        for group in ("billing", "stock"):
            Handled.objects.create(consumer_group=group, message_key="m1", handled_at_ms=NOW_MS)
        page = self.page("halfmq/inboxmessage/")
        assert "billing" in page
        assert "stock" in page
        assert "2 handled messages" in page
        assert "m1/change" not in page
        self.page("halfmq/inboxmessage/m1/change/", 302)

    def test_the_outbox_shows_states_and_bodies_as_text(self) -> None:
        with transaction.atomic():
            send_on_commit("orders", "<script>alert(1)</script>", sharding_key="customer 1")
            send_on_commit("orders", b"\xff" * 20_000, delay=60)
        page = self.page("halfmq/outboxmessage/")
        for text in ("waiting: a relay publishes it", "scheduled: published when it is due", "customer 1"):
            assert text in page, text
        waiting, scheduled = OutboxMessage.objects.order_by("seq")
        assert scheduled.message_id not in self.page("halfmq/outboxmessage/?delivery=W")
        detail = self.page(f"halfmq/outboxmessage/{waiting.seq}/change/")
        assert "&lt;script&gt;alert(1)" in detail
        assert "<script>alert" not in detail
        assert "..." in self.page(f"halfmq/outboxmessage/{scheduled.seq}/change/")

    def test_lanes_say_who_holds_them(self) -> None:
        OutboxLane.objects.create(
            lane=1, token="t", holder="host:7", lease_until_ms=NOW_MS, batch_id="", batch_seqs="", one_by_one_to_seq=0
        )
        assert "host:7" in self.page("halfmq/outboxlane/")
        assert "host:7" in self.page("halfmq/outboxlane/1/change/")
        assert '<td class="field-token' not in self.page("halfmq/outboxlane/")


class InSeveralDatabases(Case):
    databases = ("default", "other")

    def test_the_list_and_its_rows_are_those_of_the_chosen_one(self) -> None:
        for alias in self.databases:
            Marker.objects.using(alias).create(tx_id=f"tx-{alias}", outcome="C", written_at_ms=NOW_MS)
        assert "tx-other" not in self.page("halfmq/marker/")
        assert "?database=other" in self.page("halfmq/marker/")
        chosen = self.page("halfmq/marker/?database=other")
        assert "tx-default" not in chosen
        (link,) = re.findall(r'href="/admin/(halfmq/marker/tx-other/change/[^"]*)"', chosen)
        assert "committed: its messages" in self.page(link)
        self.page("halfmq/marker/tx-other/change/", 302)

    def test_nothing_is_to_be_chosen_of_one(self) -> None:
        with override_settings(HALFMQ={**settings.HALFMQ, "DATABASES": ["default"]}):
            assert "?database=" not in self.page("halfmq/marker/")


class Changing(Case):
    def test_nobody_adds_changes_or_deletes(self) -> None:
        Marker.objects.create(tx_id="tx-c", outcome="C", written_at_ms=NOW_MS)
        with transaction.atomic():
            send_on_commit("orders", "1")
        seq = OutboxMessage.objects.get().seq
        for path in ("halfmq/marker/tx-c/{}", f"halfmq/outboxmessage/{seq}/{{}}"):
            for what in ("change/", "delete/"):
                response = self.client.post(f"/admin/{path.format(what)}", {"outcome": "R", "post": "yes"})
                assert response.status_code == 403, path
        for model in ALL:
            self.page(f"halfmq/{model}/add/", 403)
            chosen = {"action": "delete_selected", "_selected_action": ["tx-c", str(seq)], "post": "yes"}
            self.client.post(f"/admin/halfmq/{model}/", chosen)
        assert Marker.objects.get(tx_id="tx-c").outcome == "C"
        assert OutboxMessage.objects.count() == 1

    def test_who_may_view_one_sees_that_one(self) -> None:
        user = User.objects.create_user("clerk", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_marker"))
        self.client.force_login(user)
        self.page("halfmq/marker/")
        self.page("halfmq/outboxmessage/", 403)
