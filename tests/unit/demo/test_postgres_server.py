"""The server of the demo and of docs/tutorials.md says what is missing."""

import importlib.util
from typing import Any

import pytest
from demo import postgres_server


def test_a_missing_driver_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec: Any = importlib.util.find_spec
    monkeypatch.setattr(postgres_server, "find_spec", lambda name: None if name == "psycopg" else find_spec(name))
    with pytest.raises(SystemExit, match=r"pip install 'psycopg\[binary\]'"):
        postgres_server.main()
