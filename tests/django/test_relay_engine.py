"""The relay's engine: connections that Django opens, with transactions as SQLAlchemy expects them."""

import pytest
from django.db import connections
from django.db.backends.signals import connection_created
from sqlalchemy import text

from halfmq.django.models import Marker
from halfmq.django.relay_engine import engine_of
from halfmq.errors import UnsupportedCombination

INSERT = text("INSERT INTO mq_tx (tx_id, outcome, written_at_ms) VALUES ('a', 'P', 0)")


def test_a_transaction_of_the_engine_is_one(using: str) -> None:
    engine = engine_of(using)
    try:
        with engine.connect() as connection:
            connection.execute(INSERT)
            connection.rollback()
        assert not Marker.objects.filter(tx_id="a").exists()
        with engine.begin() as connection:
            connection.execute(INSERT)
        assert Marker.objects.filter(tx_id="a").exists()
    finally:
        engine.dispose()


def test_what_a_project_does_with_each_new_connection_is_done_with_those_of_the_relay(using: str) -> None:
    made = []
    connections[using].ensure_connection()

    def count(connection: object, **_: object) -> None:
        made.append(connection)

    connection_created.connect(count)
    engine = engine_of(using)
    try:
        with engine.connect():
            assert len(made) == 1
    finally:
        connection_created.disconnect(count)
        engine.dispose()


def test_the_engine_has_no_password_to_show(using: str) -> None:
    connections[using].settings_dict["PASSWORD"] = "secret"
    try:
        assert "secret" not in engine_of(using).url.render_as_string(hide_password=False)
    finally:
        del connections[using].settings_dict["PASSWORD"]


def test_a_database_without_tables_of_ours_is_refused(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[using], "vendor", "oracle")
    with pytest.raises(UnsupportedCombination, match="no tables for oracle"):
        engine_of(using)
