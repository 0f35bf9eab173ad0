"""Settings that administrators change while the broker runs. Which ones may change: ``model.runtime_settings``.

    SetSetting     the value from now on, and the value of the configuration, which it replaces
    UnsetSetting   the value of the configuration again

A decision reads ``State.settings``, in which the recorded values replace those of the configuration (``State.configured``). So a log that
is redone, or applied by another broker, has the settings with which it was decided, from the same record on. What the broker itself reads,
such as the retention, is recorded here as well, and has no effect in ``core``.

The recorded value holds while the configuration says what it said then. A start with another configuration forgets it
(``Engine.begin_epoch``): somebody changed the configuration after it.
"""

from dataclasses import replace
from typing import Any

from halfmq.core.audit import signed
from halfmq.core.base_bytes import refuse_space, setting_bytes
from halfmq.core.commands import SetSetting, UnsetSetting
from halfmq.core.decision import Decision, Done, SettingChanged, Why, refuse
from halfmq.core.events import CheckLimitRaised
from halfmq.core.schema import OF_CORE, setting_set
from halfmq.core.state import State, next_offset
from halfmq.model.records import OperatorAction, SettingSet
from halfmq.model.runtime_settings import CHANGEABLE, RecordedSetting, contradiction


def decide_set_setting(state: State, command: SetSetting, now_ms: int) -> Decision:
    """Give the setting a value. It has been checked for itself (``broker.runtime_settings``).

    Replies:
        Done. Refused INVALID_PARAMETER: there is no such setting that may change, or it contradicts another one. LIMIT_REACHED: no space
        in a base.
    """
    name = command.name
    if name not in CHANGEABLE:
        return refuse(Why.INVALID_PARAMETER, f"{name} is no setting that may change while the broker runs")
    refused = _contradiction(state, name, command.value)
    if refused:
        return refuse(Why.INVALID_PARAMETER, refused)
    recorded = RecordedSetting(command.value, command.configured, command.by.name, now_ms)
    more = setting_bytes(name, recorded) - setting_bytes(name, state.recorded_settings.get(name))
    full = refuse_space(state, more, f"setting {name} was not changed")
    if full is not None:
        return Decision((), full)
    return _changed(state, setting_set(next_offset(state), name, recorded), command, command.value)


def decide_unset_setting(state: State, command: UnsetSetting, now_ms: int) -> Decision:
    """Give the setting the value of the configuration again.

    Replies:
        Done. Refused NOT_FOUND: it has that value. INVALID_PARAMETER: that value contradicts another setting.
    """
    name = command.name
    if name not in state.recorded_settings:
        return refuse(Why.NOT_FOUND, f"nothing to unset: setting {name} was not changed while the broker ran")
    configured = getattr(state.configured, name) if name in OF_CORE else None
    refused = _contradiction(state, name, configured)
    if refused:
        return refuse(Why.INVALID_PARAMETER, refused)
    return _changed(state, setting_set(next_offset(state), name, None), command, configured)


def _contradiction(state: State, name: str, value: Any) -> str:
    if name not in OF_CORE:
        return ""
    return contradiction(replace(state.settings, **{name: value}), name)


def _changed(state: State, record: SettingSet, command: SetSetting | UnsetSetting, value: Any) -> Decision:
    if command.preview:
        return Decision((), Done())
    name = command.name
    raised = name == "checks_in_flight_max" and value > state.settings.checks_in_flight_max
    events = (CheckLimitRaised(),) if raised else ()
    decision = Decision((record,), Done(), (SettingChanged(name),), events)
    return signed(decision, OperatorAction.SET_SETTING, name, command.by)
