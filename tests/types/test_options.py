"""The options that calls pass on are written down once, as typed dictionaries, and are those of who takes them."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import pytest

import halfmq
import halfmq.sql
import halfmq.testing
from halfmq import App, AsyncClient, Client, Transaction, UsageError
from halfmq.broker.config import BrokerConfig
from halfmq.client import arguments
from halfmq.client.arguments import refuse_unknown
from halfmq.client.outgoing import compose
from halfmq.model.settings import BrokerSettings
from halfmq.sql import Outbox
from halfmq.testing import CRASH_POINTS, HANDLER_POINTS, TRANSACTION_POINTS, Broker, CrashPoint
from halfmq.testing.broker_options import BrokerOptions
from halfmq.testing.crashes import HandlerPoint, TransactionPoint


def named(call: Callable[..., Any]) -> set[str]:
    """The arguments of a call that have a name, beside those that it passes on."""
    return {one.name for one in inspect.signature(call).parameters.values() if one.kind is one.KEYWORD_ONLY}


def keys(options: Any) -> set[str]:
    return set(options.__required_keys__ | options.__optional_keys__)


@pytest.mark.parametrize(
    ("options", "call", "others"),
    [
        (arguments.ClientOptions, AsyncClient.__init__, {"group"}),
        (arguments.MessageOptions, compose, set()),
        (arguments.TransactionOptions, AsyncClient.transaction, {"markers"}),
        (arguments.TccOptions, AsyncClient.tcc, {"markers", "timeout"}),
        (arguments.OutboxRelayOptions, Outbox.relay, set()),
        (arguments.ConsumerOptions, App.consumer, {"group", "inbox", "markers", "outbox", "on_dead", "barrier"}),
    ],
)
def test_options_are_those_of_the_call(options: Any, call: Callable[..., Any], others: set[str]) -> None:
    # What it passes on itself is a part of the dictionary.
    passed_on = keys(arguments.BlockOptions) if "BlockOptions" in str(inspect.signature(call)) else set()
    assert keys(options) | others == named(call) | passed_on


def test_options_of_an_app_are_its_own_and_those_of_its_client() -> None:
    assert keys(arguments.AppOptions) == keys(arguments.ConnectOptions) | named(App.__init__)
    assert keys(arguments.EnvironmentOptions) == keys(arguments.ClientOptions) | {"group"}


def test_options_of_a_broker_for_tests_are_its_settings() -> None:
    settings = {one.name for one in (*fields(BrokerConfig), *fields(BrokerSettings))}
    assert keys(BrokerOptions) == settings - {"data", "settings", "given"}


#: A misspelt option of each public constructor that passes options on, and the one that was meant.
MISSPELT: dict[type, tuple[str, str]] = {
    Client: ("timout", "timeout"),
    App: ("timout", "timeout"),
    Broker: ("check_imunity_ms", "check_immunity_ms"),
}


def public_classes() -> list[type]:
    found = [getattr(module, name) for module in (halfmq, halfmq.sql, halfmq.testing) for name in module.__all__]
    return [one for one in found if inspect.isclass(one)]


def test_every_public_constructor_that_passes_options_on_is_in_the_table() -> None:
    of_others = (BaseException, tuple, Transaction)  # the client makes transactions
    classes = [one for one in public_classes() if not issubclass(one, of_others)]
    assert len(classes) >= 15
    passing = {
        one
        for one in classes
        if any(given.kind is given.VAR_KEYWORD for given in inspect.signature(one).parameters.values())
    }
    assert passing == MISSPELT.keys()


@pytest.mark.parametrize("make", MISSPELT)
@pytest.mark.parametrize("kind", [UsageError, TypeError])
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(make: Any, kind: type[Exception]) -> None:
    wrong, meant = MISSPELT[make]
    url = ("rocketmq://127.0.0.1:9876",) if make is not Broker else ()
    with pytest.raises(kind, match=rf"{make.__name__} got an unexpected option '{wrong}'; did you mean '{meant}'\?"):
        make(*url, **{wrong: 3})


def test_crash_points_have_types_of_the_same_names() -> None:
    assert set(get_args(TransactionPoint)) == TRANSACTION_POINTS.keys()
    assert set(get_args(HandlerPoint)) == HANDLER_POINTS.keys()
    assert {point for kind in get_args(CrashPoint) for point in get_args(kind)} == CRASH_POINTS.keys()


def test_an_option_that_is_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(UsageError, match="call got an unexpected option 'zzz'; it has a, b"):
        refuse_unknown({"a": 1, "zzz": 2}, ["b", "a"], "call")
