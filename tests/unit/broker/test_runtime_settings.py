"""Settings that are changed while the broker runs. For each one that may change, something that a client or the disk sees is different."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.half_batches import QueryRun, messages
from tests.support.in_process import Running, ShiftedClock, serving, serving_by_hand
from tests.support.raw_client import Answer, RawClient
from tests.support.waiting import soon, until
from tests.unit.broker.test_maintenance import NO_WINDOW, SMALL, filled, looks_at_retention, retention_decided

from halfmq.broker import maintenance
from halfmq.broker.config import BrokerConfig, configured_value, with_setting
from halfmq.core.commands import SetGroup
from halfmq.errors import UsageError
from halfmq.model.runtime_settings import CHANGEABLE, RUNTIME, SETTING_MAX, Changes
from halfmq.model.settings import BrokerSettings
from halfmq.model.shown_settings import ShownSetting
from halfmq.wire.remoting.codes import HMQ_LOGIN, HMQ_SET_SETTING, HMQ_SETTINGS

EAGER: Final = {"retention_check_ms": 20, "checkpoint_interval_ms": 40, "retention_ms": 0, "settings": NO_WINDOW}
NEVER_MS: Final = 3_600_000


async def ask(client: RawClient, name: str, value: object = None, **more: str) -> Answer:
    """Set it; without a value: unset it."""
    how = {"unset": "true"} if value is None else {"value": json.dumps(value)}
    return await client.ask(HMQ_SET_SETTING, {"setting": name, "operator": "ada", **how, **more})


async def put(running: Running, name: str, value: object = None) -> None:
    client = await running.client()
    answer = await ask(client, name, value)
    assert answer.code == 0, answer.remark


def one(number: int) -> str:
    return f"AC10000100002A9F{number:016d}"


# --- a scenario for each setting -----------------------------------------------------------------------------------


async def _checkpoints(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        await filled(running, 1)
        written = running.state.log_end
        assert running.maintenance._checkpoint_at < written
        await put(running, name, 20)
        await until(lambda: running.maintenance._checkpoint_at > written)


async def _retention_hours(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = ShiftedClock(), looks_at_retention(monkeypatch)
    async with serving(tmp_path, segment_bytes=SMALL, clock=clock, **EAGER) as running:
        await filled(running)
        clock.passed_ms = 2 * 3_600_000
        await filled(running, 1, "MORE")
        await retention_decided(running, looks)
        assert running.state.log_start == 0
        await put(running, name, 1.5)
        await until(lambda: running.state.log_start > 0)


async def _retention_bytes(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looks_at_retention(monkeypatch)
    async with serving(tmp_path, segment_bytes=SMALL, **EAGER) as running:
        await filled(running)
        await retention_decided(running, looks)
        assert running.state.log_start == 0
        await put(running, name, 2 * SMALL)
        await until(lambda: running.state.log_start > 0)


async def _retention_check(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seldom = {**EAGER, "retention_check_ms": NEVER_MS, "retention_bytes": 2 * SMALL}
    async with serving(tmp_path, segment_bytes=SMALL, **seldom) as running:
        await filled(running)
        assert running.state.log_start == 0
        await put(running, name, 20)
        await until(lambda: running.state.log_start > 0)


async def _hold(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looks_at_retention(monkeypatch)
    async with serving(tmp_path, segment_bytes=SMALL, retention_bytes=2 * SMALL, **EAGER) as running:
        running.broker._sequencer.submit(SetGroup("archive", hold_topics=("Fill",)), None)
        await filled(running)
        await retention_decided(running, looks)
        assert running.state.log_start == 0, "the group has not read it"
        await put(running, name, 3 * SMALL)
        await until(lambda: running.state.log_start > 0)


async def _reserve(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, segment_bytes=SMALL) as running:
        client = await running.client()
        half = await client.half("T", b"one", unique=one(1))
        await put(running, name, SETTING_MAX)
        await until(lambda: running.state.session.disk_full)
        assert (await client.send("T", b"x", unique=one(2))).code != 0
        assert (await client.end(half, one(1), 8)).code == 0, "verdicts are accepted"
        await put(running, name)
        await until(lambda: not running.state.session.disk_full)
        assert (await client.send("T", b"x", unique=one(2))).code == 0


@asynccontextmanager
async def checking(tmp_path: Path, **settings: int) -> AsyncIterator[tuple[Running, RawClient]]:
    """A broker that checks at once, and a producer that answers nothing."""
    async with serving(tmp_path, settings=BrokerSettings(check_immunity_ms=0, **settings)) as running:
        asked = await running.client()
        await asked.heartbeat("me", producers=["P"])
        yield running, asked


async def _check_interval(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never = {"check_interval_ms": NEVER_MS, "check_interval_max_ms": NEVER_MS, "check_answer_ms": 1}
    async with checking(tmp_path, **never) as (running, asked):
        await put(running, name, 20)
        await (await running.client()).half("T", b"one", unique=one(1))
        for _ in range(3):
            await soon(asked.pushes.get())


async def _check_interval_max(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"check_interval_ms": 1, "check_interval_max_ms": 10, "check_answer_ms": 1}
    async with checking(tmp_path, **quick) as (running, _):
        await put(running, name, 60_000)
        await (await running.client()).half("T", b"one", unique=one(1))
        undecided = running.state.producer_groups["P"].undecided
        # 10 ms, and a quarter of that, are the longest interval before the change.
        await until(lambda: undecided[one(1)].next_check > running.state.batch_time_ms + 200)


async def _check_answer(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"check_interval_ms": 1, "check_interval_max_ms": 10, "check_answer_ms": NEVER_MS}
    async with checking(tmp_path, **slow) as (running, asked):
        await put(running, name, 20)
        await (await running.client()).half("T", b"one", unique=one(1))
        for _ in range(3):
            await soon(asked.pushes.get())


async def _checks_in_flight(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with checking(tmp_path, checks_in_flight_max=1, check_answer_ms=NEVER_MS) as (running, asked):
        client = await running.client()
        for number in range(3):
            await client.half("T", b"one", unique=one(number))
        await soon(asked.pushes.get())
        await until(lambda: running.state.producer_groups["P"].session.full_until_ms)
        assert asked.pushes.empty()
        await put(running, name, 2)
        await soon(asked.pushes.get())
        assert len(running.state.producer_groups["P"].session.in_flight) == 2


async def _undecided(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 refuses all transactions; the limits of a group and of all count for a group that has some already."""
    async with serving(tmp_path) as running:
        client = await running.client()
        assert (await client.half("T", b"one", unique=one(1))).code == 0
        group = "Q" if name == "undecided_groups_max" else "P"
        await put(running, name, 0)
        assert (await client.half("T", b"two", unique=one(2), group=group)).code != 0
        await put(running, name)
        assert (await client.half("T", b"two", unique=one(2), group=group)).code == 0


async def _delayed(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await put(running, name, 1)
        assert (await client.send("T", b"x", unique=one(1), TIMER_DELAY_SEC="3600")).code == 0
        assert (await client.send("T", b"x", unique=one(2), TIMER_DELAY_SEC="3600")).code != 0
        assert (await client.send("T", b"x", unique=one(3))).code == 0


async def _queries(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await put(running, name, 1)
        for query, code in (("q1", 0), ("q2", 2)):
            run = await QueryRun.begin(client, query=query)
            answer = await run.prepare(0, "0.1", messages("m", 1))
            assert answer.code == code, answer.remark


async def _topics(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await put(running, name, False)
        assert (await client.send("T", b"x", unique=one(1))).code == 17
        await put(running, name, True)
        assert (await client.send("T", b"x", unique=one(1))).code == 0


async def _groups(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        await client.send("T", b"x", unique=one(1))
        await put(running, name, False)
        assert (await client.pull("T", group="New")).code == 26
        await put(running, name)
        assert (await client.pull("T", group="New")).code == 0


SCENARIOS: Final[dict[str, Callable[[Path, str, pytest.MonkeyPatch], Awaitable[None]]]] = {
    "checkpoint_interval_ms": _checkpoints,
    "retention_hours": _retention_hours,
    "retention_bytes": _retention_bytes,
    "retention_check_ms": _retention_check,
    "hold_bytes": _hold,
    "disk_reserve_bytes": _reserve,
    "check_interval_ms": _check_interval,
    "check_interval_max_ms": _check_interval_max,
    "check_answer_ms": _check_answer,
    "checks_in_flight_max": _checks_in_flight,
    "undecided_max": _undecided,
    "undecided_bytes_max": _undecided,
    "undecided_total_max": _undecided,
    "undecided_total_bytes_max": _undecided,
    "undecided_groups_max": _undecided,
    "delayed_total_max": _delayed,
    "queries_max": _queries,
    "auto_create_topics": _topics,
    "auto_create_groups": _groups,
}


def test_each_setting_that_may_change_has_a_scenario() -> None:
    assert tuple(SCENARIOS) == CHANGEABLE


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_change_has_an_effect_in_the_running_broker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await SCENARIOS[name](tmp_path, name, monkeypatch)


# --- starts --------------------------------------------------------------------------------------------------------


def settings_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [(one.levelname, one.getMessage()) for one in caplog.records if one.getMessage().startswith("setting ")]
    caplog.clear()
    return lines


async def shown(client: RawClient, name: str) -> Any:
    answer = await client.ask(HMQ_SETTINGS)
    assert answer.code == 0
    return json.loads(answer.body)[name]


def given(**values: Any) -> dict[str, ShownSetting]:
    return {name: ShownSetting(value, "file", "/etc/halfmq.toml") for name, value in values.items()}


async def test_a_value_holds_over_restarts_until_the_configuration_says_something_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfmq.broker")
    names = {"given": given(retention_hours=72.0, undecided_max=60)}
    first = BrokerSettings(undecided_max=60)
    async with serving(tmp_path, settings=first, **names) as running:
        await put(running, "undecided_max", 1)
        await put(running, "retention_hours", 24)
        found = await shown(await running.client(), "retention_hours")
        set_at_ms = found.pop("set_at_ms")
        assert running.state.log_end
        assert found == {"value": 24.0, "source": "recorded", "from": None, "set_by": "ada", "configured": 72.0}
        assert set_at_ms <= running.broker._sequencer._time.now_ms()
    assert settings_lines(caplog) == []
    for _ in range(2):
        async with serving(tmp_path, settings=first, **names) as running:
            assert (running.state.settings.undecided_max, running.maintenance._config.retention_ms) == (
                1,
                24 * 3_600_000,
            )
            kept, other = settings_lines(caplog)
            assert kept[0] == "INFO"
            assert kept[1].startswith("setting undecided_max is 1, as set at 20")
            assert kept[1].endswith(
                " UTC by ada: it wins over 60 of the configuration (file /etc/halfmq.toml), which is as it was then"
            )
            assert "setting retention_hours is 24.0" in other[1]
    async with serving(tmp_path, settings=BrokerSettings(undecided_max=80), **names) as running:
        assert running.state.settings.undecided_max == 80
        assert running.state.producer_group("P").undecided_max == 80
        lost, kept = settings_lines(caplog)
        assert lost[0] == "WARNING"
        assert lost[1].startswith(
            "setting undecided_max: the configuration wins, 80 (file /etc/halfmq.toml), which was 60 then. The value 1, set at 20"
        )
        assert lost[1].endswith(" UTC by ada, is forgotten")
        assert "setting retention_hours is 24.0" in kept[1]
        assert (await shown(await running.client(), "undecided_max"))["source"] == "file"
    async with serving(tmp_path, settings=first, **names) as running:
        assert running.state.settings.undecided_max == 60, "it was forgotten for good"
        assert len(settings_lines(caplog)) == 1


async def test_a_value_that_a_new_configuration_of_another_setting_makes_impossible_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, settings=BrokerSettings()) as running:
        await put(running, "check_interval_ms", 50_000)
        await put(running, "queries_max", 5)
    async with serving(tmp_path, settings=BrokerSettings(check_interval_max_ms=40_000)) as running:
        settings = running.state.settings
        assert (settings.check_interval_ms, settings.check_interval_max_ms) == (
            BrokerSettings().check_interval_ms,
            40_000,
        )
        assert settings.queries_max == 5, "the others hold"
        ((_, text),) = [line for line in settings_lines(caplog) if line[0] == "WARNING"]
        assert "since the value is not possible with it: check interval 50000 ms not possible (1 to 40000 ms" in text
        assert running.state.recorded_settings.keys() == {"queries_max"}


async def test_a_change_is_shown_and_used_by_the_broker_once_it_is_durable(tmp_path: Path) -> None:
    async with serving_by_hand(tmp_path) as (running, hand):
        client, reader = await running.client(), await running.client()
        store = running.broker._store
        assert store is not None
        changing = asyncio.create_task(ask(client, "disk_reserve_bytes", 77))
        await until(lambda: "disk_reserve_bytes" in running.state.recorded_settings)
        reading = asyncio.create_task(reader.ask(HMQ_SETTINGS))
        await asyncio.sleep(0)  # it is written
        assert (await reader.ask(HMQ_LOGIN, {"user": "x"})).code == 2, (
            "answered at once, after the other one was handled"
        )
        assert (changing.done(), reading.done(), store.log.reserve_bytes) == (False, False, 0)
        while not (changing.done() and reading.done()):
            await hand.sync()
        assert (changing.result().code, reading.result().code, store.log.reserve_bytes) == (0, 0, 77)
    async with serving(tmp_path) as running:
        store = running.broker._store
        assert store is not None
        assert store.log.reserve_bytes == 77


# --- values --------------------------------------------------------------------------------------------------------


def refusal(config: BrokerConfig, name: str, value: int) -> str:
    """How a start refuses it."""
    try:
        with_setting(config, name, value).checked()
    except UsageError as error:
        return str(error)
    return ""


async def test_a_value_is_refused_in_the_words_of_a_start(tmp_path: Path) -> None:
    bad = {name: row.kind(-1) for name, row in RUNTIME.items() if isinstance(row, Changes) and row.kind is not bool}
    config = BrokerConfig(tmp_path)
    async with serving(tmp_path) as running:
        client = await running.client()
        seen = 0
        for name, value in bad.items():
            answer = await ask(client, name, value)
            assert answer.code == 29, name
            if name != "check_interval_max_ms":  # the rule about two of them says what to do
                assert answer.remark == refusal(config, name, value), name
                seen += 1
        assert seen == len(bad) - 1
        assert seen > 15
        assert not running.state.recorded_settings


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("undecided_max", '"5"', "undecided_max: a whole number is expected, not '\"5\"'"),
        ("undecided_max", "5.5", "undecided_max: a whole number is expected, not '5.5'"),
        ("undecided_max", "true", "undecided_max: a whole number is expected, not 'true'"),
        ("undecided_max", "", "undecided_max: a whole number is expected, not ''"),
        ("undecided_max", "[" * 5_000, "undecided_max: a whole number is expected, not '[[[["),
        ("undecided_max", str(1 << 63), f"undecided_max: at most {SETTING_MAX}"),
        ("auto_create_topics", "1", "auto_create_topics: true or false is expected, not '1'"),
        ("retention_hours", "null", "retention_hours: a number is expected, not 'null'"),
        ("retention_hours", "1e99", "retention hours 1e+99 not possible"),
        ("durability", '"memory"', "durability does not change while the broker runs: responses say it"),
        ("undecided", "5", "there is no setting 'undecided'"),
    ],
)
async def test_a_value_of_another_kind_is_refused(tmp_path: Path, name: str, value: str, text: str) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        answer = await client.ask(HMQ_SET_SETTING, {"setting": name, "value": value, "operator": "ada"})
        assert (answer.code, running.state.recorded_settings) == (29, {})
        assert (answer.remark or "").startswith(text), answer.remark


async def test_who_changes_a_setting_must_say_a_name_and_the_largest_value_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        client = await running.client()
        answer = await ask(client, "undecided_max", 5, operator="")
        assert (answer.code, answer.remark) == (29, "operator: who changes the setting, 1 to 64 characters")
        assert (await ask(client, "undecided_max", SETTING_MAX)).code == 0
        assert (await ask(client, "undecided_max")).code == 0
        assert (await ask(client, "undecided_max")).code == 1
    async with serving(tmp_path) as running:
        assert running.state.recorded_settings == {}


async def test_the_disk_reserve_counts_from_the_first_message_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SPACE_CHECK_MS", NEVER_MS)
    for more in ({"disk_reserve_bytes": SETTING_MAX}, {}):
        async with serving(tmp_path, **more) as running:
            answer = await (await running.client()).send("T", b"x", unique=one(1))
            assert (answer.code != 0) == bool(more), answer.remark
            if not more:
                await put(running, "disk_reserve_bytes", SETTING_MAX)
    async with serving(tmp_path) as running:
        assert (await (await running.client()).send("T", b"x", unique=one(2))).code != 0, "as it was set"


async def test_a_retention_of_less_than_a_millisecond_is_not_unlimited(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        await put(running, "retention_hours", 1e-7)
        assert running.maintenance._config.retention_ms == 1
        await put(running, "retention_hours", 0)
        assert running.maintenance._config.retention_ms == 0


def test_each_value_is_found_where_it_is_changed(tmp_path: Path) -> None:
    config = BrokerConfig(tmp_path)
    for name in CHANGEABLE:
        row = RUNTIME[name]
        assert isinstance(row, Changes)
        value = row.kind(0) if configured_value(config, name) else row.kind(3)
        assert configured_value(with_setting(config, name, value), name) == value
        assert with_setting(config, name, value) != config
