"""The limit of open files is raised as far as allowed, and what the store needs is never given to connections."""

import resource

import pytest

from halfmq.broker import descriptors
from halfmq.broker.descriptors import RESERVED, connections_that_fit
from halfmq.errors import EnvironmentFailed

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "room", "set_to"),
    [
        (1_024, 20_000, 4_000, 4_000, RESERVED + 4_000),
        (1_024, 4_096, 16_384, 4_096 - RESERVED, 4_096),
        (1_024, UNLIMITED, 16_384, 16_384, RESERVED + 16_384),
        (65_536, 65_536, 1_000, 1_000, None),
        (UNLIMITED, UNLIMITED, 1_000, 1_000, None),
        (1_024, 1_024, 100, 100, None),
    ],
)
def test_soft_limit_is_raised_as_far_as_needed(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, room: int, set_to: int | None
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _, limits: done.append(limits))
    assert connections_that_fit(wanted) == room
    assert done == ([] if set_to is None else [(set_to, hard)])


def test_descriptors_that_others_need_are_not_given_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (RESERVED + 100, RESERVED + 100))
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda *_: None)
    assert (connections_that_fit(100), connections_that_fit(100, beside=32)) == (100, 68)


def test_limit_that_leaves_no_room_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (RESERVED, RESERVED))
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda *_: None)
    with pytest.raises(EnvironmentFailed) as caught:
        connections_that_fit(1_000)
    assert "ulimit -n" in caught.value.hint


def test_limit_that_may_not_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(descriptors.resource, "setrlimit", refuse)
    assert connections_that_fit(16_384) == 1_024 - RESERVED
