"""The options that calls pass on are written down once, as typed dictionaries, and are those of who takes them."""

import contextlib
import importlib
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, get_args

import pytest

from halfmq import App, AsyncClient, Client, UsageError
from halfmq.broker.config import BrokerConfig
from halfmq.client import arguments
from halfmq.client.arguments import refuse_unknown
from halfmq.client.coordinator import BlockingCoordinator
from halfmq.client.faces import blocking, finished
from halfmq.client.outgoing import compose
from halfmq.client.tcc import AsyncTcc, BlockingTcc
from halfmq.model.settings import BrokerSettings
from halfmq.sql import Outbox
from halfmq.testing import CRASH_POINTS, HANDLER_POINTS, TRANSACTION_POINTS, CrashPoint
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


#: Public names of halfmq, beside those that a module lists in ``__all__``: what users get from them.
MODULES = (
    "halfmq", "halfmq.sql", "halfmq.testing", "halfmq.django", "halfmq.cloudevents", "halfmq.relay.halfmq", "halfmq.relay.kafka",
    "halfmq.relay.rabbitmq", "halfmq.relay.rocketmq",
)  # fmt: skip
#: Functions whose options are somebody else's.
OF_OTHERS = {"KafkaPublisher.__init__": "settings of librdkafka, which refuses those that it does not have"}

#: Classes that the pages know by another name.
CALLED = {"BlockingCoordinator": "Coordinator"}


class Passing(NamedTuple):
    """A public function with ``**options``."""

    name: str
    function: Callable[..., Any]
    #: None: it is no method.
    of: type | None


def public_values() -> Iterator[Any]:
    for name in MODULES:
        module = importlib.import_module(name)
        own = [one for one in vars(module) if getattr(vars(module)[one], "__module__", None) == name]
        yield from (getattr(module, one) for one in getattr(module, "__all__", own) if not one.startswith("_"))
    yield from (AsyncTcc, BlockingCoordinator, BlockingTcc)


def passes_options(function: Any) -> bool:
    """Whether it takes any name; that of a context manager is asked for its own function, whose arguments Python checks."""
    if not inspect.isfunction(function) or not function.__module__.startswith("halfmq"):
        return False
    if function.__code__.co_filename == contextlib.__file__:
        function = inspect.unwrap(function)
    given = inspect.signature(function, follow_wrapped=False).parameters.values()
    return any(one.kind is one.VAR_KEYWORD for one in given)


def passing() -> dict[str, Passing]:
    found: dict[str, Passing] = {}
    for value in public_values():
        if inspect.isfunction(value) and passes_options(value):
            found[value.__name__] = Passing(value.__name__, value, None)
        elif inspect.isclass(value) and not issubclass(value, BaseException):
            for name in dir(value):
                method = inspect.getattr_static(value, name)
                method = getattr(method, "__func__", method)
                if (not name.startswith("_") or name in ("__init__", "__call__")) and passes_options(method):
                    called = f"{CALLED.get(value.__name__, value.__name__)}.{name}".removesuffix(".__init__")
                    found[f"{value.__name__}.{name}"] = Passing(called, method, value)
    return {name: one for name, one in found.items() if name not in OF_OTHERS}


def misspelt(function: Callable[..., Any]) -> tuple[str, str]:
    """A wrong name, and the one that was meant: of those that come in ``**options``, if there are any."""
    given = list(inspect.signature(function).parameters.values())
    options = [name for one in given if one.kind is one.VAR_KEYWORD for name in keys(get_args(one.annotation)[0])]
    meant = max(options or [one.name for one in given if one.kind is one.KEYWORD_ONLY], key=len, default="")
    return (meant[:-1], meant) if meant else ("zzz", "")


def call_with(one: Passing, **wrong: object) -> Any:
    """Everything that has to be given is something else: the option is refused before that is looked at, or anything is done."""
    own = inspect.signature(one.function, follow_wrapped=False).parameters.values()
    needed = [each for each in own if each.default is each.empty]
    positional = [object() for each in needed if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if one.of is not None and any(each.kind is each.VAR_POSITIONAL for each in own):
        positional = [object()]
    if one.of is not None:
        positional[0] = object.__new__(one.of)
    named = {each.name: object() for each in needed if each.kind is each.KEYWORD_ONLY}
    result = one.function(*positional, **named, **wrong)
    return finished(result) if inspect.iscoroutine(result) else result


def test_functions_with_options_are_found() -> None:
    found = passing()
    assert len(found) >= 45
    assert {
        "App.__init__",
        "AsyncClient.transaction",
        "Client.send",
        "atomic",
        "send_on_commit",
        "Broker.__init__",
    } <= {*found}
    assert not {name for name in OF_OTHERS if name in found}


@pytest.mark.parametrize("name", passing())
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(name: str) -> None:
    one = passing()[name]
    wrong, meant = misspelt(one.function)
    text = f"{one.name} got an unexpected option {wrong!r}; " + (f"did you mean {meant!r}?" if meant else "it has ")
    with pytest.raises(UsageError, match=re.escape(text)) as raised:
        call_with(one, **{wrong: 3})
    assert isinstance(raised.value, TypeError)
    assert f"{type(raised.value).__module__}.{type(raised.value).__qualname__}" == "halfmq.errors.UsageError"


def test_a_function_of_a_test_in_its_place_takes_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = AsyncClient.prepare

    async def noted(client: AsyncClient, *given: Any, **named: Any) -> Any:
        return await real(client, *given, **named)

    monkeypatch.setattr(AsyncClient, "prepare", noted)
    with pytest.raises(UsageError, match="the client is not open"):
        finished(AsyncClient("rocketmq://127.0.0.1:9876").prepare([], tx_id="T", comment="x"))


def test_the_refusal_of_an_option_can_be_pickled() -> None:
    with pytest.raises(UsageError) as raised:
        Client("rocketmq://127.0.0.1:9876", timout=3)  # type: ignore[call-arg]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_client_has_the_option_group() -> None:
    with pytest.raises(UsageError, match=r"Client got an unexpected option 'zzz'; it has .*, group, "):
        Client("rocketmq://127.0.0.1:9876", zzz=3)  # type: ignore[call-arg]


def test_arguments_of_a_blocking_client_are_those_of_the_class_that_was_called() -> None:
    class Face:
        def _live(self) -> AsyncClient:
            return AsyncClient("rocketmq://127.0.0.1:9876")

    with pytest.raises(TypeError, match=r"^Client.send\(\) missing 1 required positional argument: 'body'"):
        blocking(AsyncClient.send)(Face(), "orders")  # type: ignore[call-arg]


def test_crash_points_have_types_of_the_same_names() -> None:
    assert set(get_args(TransactionPoint)) == TRANSACTION_POINTS.keys()
    assert set(get_args(HandlerPoint)) == HANDLER_POINTS.keys()
    assert {point for kind in get_args(CrashPoint) for point in get_args(kind)} == CRASH_POINTS.keys()


def test_an_option_that_is_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(UsageError, match="call got an unexpected option 'zzz'; it has a, b"):
        refuse_unknown({"a": 1, "zzz": 2}, ["b", "a"], "call")
