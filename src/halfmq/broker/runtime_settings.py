"""The settings of a broker that runs: those of its start, and in their place what administrators changed (``core.runtime_settings``).

The configuration is what options, environment and file say; the state has the changes. A start compares the two once (``to_unset``).
Whoever reads a setting that may change reads ``config`` at each use, or is told by ``on_change``.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec.structs import replace as replace_fields

from halfmq.broker.config import BY_PROGRAM, BrokerConfig, configured_value, shown_settings, with_setting
from halfmq.broker.maintenance import is_small_retention, moment, small_retention
from halfmq.core.decision import Refused, Why
from halfmq.core.state import State
from halfmq.errors import UsageError
from halfmq.model.runtime_settings import (
    CHANGEABLE,
    KIND_IN_WORDS,
    RUNTIME,
    SETTING_MAX,
    Changes,
    RecordedSetting,
    SettingValue,
    contradiction,
)
from halfmq.model.shown_settings import ShownSetting

log = logging.getLogger("halfmq.broker")

_NAME_SHOWN_MAX: Final = 64


class RuntimeSettings:
    """Which settings count now."""

    def __init__(self, configured: BrokerConfig, view: State, ports: Mapping[str, int | None]) -> None:
        """``ports``: the numbers that the broker listens on, by the names of their settings."""
        self._configured = configured
        self._view = view
        self._ports = ports
        #: The configuration with the recorded values.
        self.config = configured
        #: Called when ``config`` has changed.
        self.on_change: Callable[[BrokerConfig], None] = lambda config: None
        self._unset: tuple[str, ...] = ()
        self._begin()

    # --- a start

    @property
    def to_unset(self) -> tuple[str, ...]:
        """Recorded settings that this start forgets, since the configuration wins. ``config`` is already without them."""
        return self._unset

    def _begin(self) -> None:
        """Decide which recorded settings hold, and log every one that differs from the configuration."""
        held: dict[str, RecordedSetting] = {}
        unset: list[str] = []
        for name, recorded in self._view.recorded_settings.items():
            if name not in CHANGEABLE:
                log.warning(
                    "setting %s was set to %s at %s by %s, and this version has no such setting that may change: it has no effect",
                    name, recorded.value, moment(recorded.at_ms), recorded.by,
                )  # fmt: skip
            elif configured_value(self._configured, name) != recorded.configured:
                self._log_lost(name, recorded, f"which was {_text(recorded.configured)} then")
                unset.append(name)
            else:
                held[name] = recorded
        lost = _not_possible(self._configured, held)
        for name, why in lost.items():
            self._log_lost(name, held.pop(name), f"since the value is not possible with it: {why}")
        for name, recorded in held.items():
            configured = configured_value(self._configured, name)
            if recorded.value != configured:
                log.info(
                    "setting %s is %s, as set at %s by %s: it wins over %s of the configuration (%s), which is as it was then",
                    name, _text(recorded.value), moment(recorded.at_ms), recorded.by, _text(configured), self._where(name),
                )  # fmt: skip
        self._unset = (*unset, *lost)
        self.config = _with_all(self._configured, _values(held))

    def _log_lost(self, name: str, recorded: RecordedSetting, why: str) -> None:
        log.warning(
            "setting %s: the configuration wins, %s (%s), %s. The value %s, set at %s by %s, is forgotten",
            name, _text(configured_value(self._configured, name)), self._where(name), why, _text(recorded.value),
            moment(recorded.at_ms), recorded.by,
        )  # fmt: skip

    def _where(self, name: str) -> str:
        given = self._configured.given.get(name)
        return given.where if given is not None else BY_PROGRAM

    # --- while it runs

    def shown(self) -> dict[str, ShownSetting]:
        """Each setting with its value and its source."""
        found = shown_settings(self._configured, self._view.settings, self._ports)
        for name, recorded in self._view.recorded_settings.items():
            if name in CHANGEABLE:
                one = found.get(name, ShownSetting(recorded.value, "recorded"))
                found[name] = replace_fields(
                    one, value=recorded.value, source="recorded", origin=None, set_at_ms=recorded.at_ms,
                    set_by=recorded.by, configured=recorded.configured,
                )  # fmt: skip
        return found

    def configured(self, name: str) -> SettingValue:
        """The value of a setting that may change, in the configuration."""
        return configured_value(self._configured, name)

    def value_of(self, name: str, text: str) -> SettingValue | Refused:
        """The value that ``text``, JSON, gives to the setting, or why it cannot have it. Refusals: INVALID_PARAMETER."""
        row = RUNTIME.get(name)
        if row is None:
            return _invalid(f"there is no setting {name[:_NAME_SHOWN_MAX]!r}")
        if not isinstance(row, Changes):
            return _invalid(
                f"{name} does not change while the broker runs: {row.why}. Change the configuration, and restart the broker"
            )
        try:
            value: SettingValue = msgspec.json.decode(text, type=row.kind)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return _invalid(f"{name}: {KIND_IN_WORDS[row.kind]} is expected, not {text[:_NAME_SHOWN_MAX]!r}")
        if isinstance(value, int) and abs(value) > SETTING_MAX:
            return _invalid(f"{name}: at most {SETTING_MAX}")
        settings = self._view.settings
        if hasattr(settings, name):
            known: Any = value
            refused = contradiction(replace(settings, **{name: known}), name)
            if refused:
                return _invalid(refused)
        why = _problem(self.config, {name: value})
        return _invalid(why) if why else value

    def warning(self, name: str, value: SettingValue) -> str:
        """What an administrator should know who gives the setting this value, which is possible; "": nothing."""
        segment_bytes = self._view.settings.segment_bytes
        if name == "retention_bytes" and isinstance(value, int) and is_small_retention(value, segment_bytes):
            return small_retention(name, value, segment_bytes)
        return ""

    def changed(self, name: str) -> None:
        """The record of a change of this setting is durable."""
        held = {one: recorded for one, recorded in self._view.recorded_settings.items() if one in CHANGEABLE}
        self.config = _with_all(self._configured, _values(held))
        self.on_change(self.config)


def _values(recorded: Mapping[str, RecordedSetting]) -> dict[str, SettingValue]:
    return {name: one.value for name, one in recorded.items()}


def _with_all(config: BrokerConfig, values: Mapping[str, SettingValue]) -> BrokerConfig:
    for name, value in values.items():
        config = with_setting(config, name, value)
    return config


def _problem(config: BrokerConfig, values: Mapping[str, SettingValue]) -> str:
    """Why ``config`` cannot have these values, in the words in which a start refuses them; "": it can."""
    try:
        _with_all(config, values).checked()
    except UsageError as error:
        return str(error)
    return ""


def _not_possible(config: BrokerConfig, recorded: Mapping[str, RecordedSetting]) -> dict[str, str]:
    """By name: why recorded values cannot stay with this configuration, as after a change of the other one of two limits."""
    values = _values(recorded)
    if not _problem(config, values):
        return {}
    kept: dict[str, SettingValue] = {}
    lost: dict[str, str] = {}
    for name, value in values.items():
        why = _problem(config, kept | {name: value})
        if why:
            lost[name] = why
        else:
            kept[name] = value
    return lost


def _text(value: SettingValue) -> str:
    return str(ShownSetting(value, ""))


def _invalid(text: str) -> Refused:
    return Refused(Why.INVALID_PARAMETER, text)
