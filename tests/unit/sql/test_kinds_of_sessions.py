"""Blocking and async sessions: each place that takes them refuses the kind that cannot work there, when it is called or registered."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmq import App, AsyncClient, Client, Message, UsageError
from halfmq.client.loop_thread import loop_thread
from halfmq.relay.publisher import Publisher
from halfmq.sql import Barrier, Inbox, MarkerTable, Outbox

URL = "rocketmq://127.0.0.1:1"
METADATA = MetaData()
INBOX, BARRIER, MARKERS, OUTBOX = Inbox(METADATA), Barrier(METADATA), MarkerTable(METADATA), Outbox(METADATA)
BLOCKING_ENGINE = create_engine("sqlite://")
ASYNC_ENGINE = create_async_engine("sqlite+aiosqlite://")
BLOCKING = sessionmaker(BLOCKING_ENGINE)
ASYNC = async_sessionmaker(ASYNC_ENGINE)
#: Each as a sessionmaker, and as a function that makes one session; relays take engines besides.
KINDS: dict[str, list[Any]] = {
    "blocking": [BLOCKING, lambda: Session(BLOCKING_ENGINE)],
    "async": [ASYNC, lambda: AsyncSession(ASYNC_ENGINE)],
}
ENGINES: dict[str, Engine | AsyncEngine] = {"blocking": BLOCKING_ENGINE, "async": ASYNC_ENGINE}


class Place(NamedTuple):
    """``takes``: the kinds that work."""

    call: Callable[[Any], Any]
    takes: str
    takes_engines: bool = False


@contextmanager
def opened() -> Iterator[Client]:
    """A client that needs no broker: nothing here is sent."""
    client = Client(URL, group="g")
    loop_thread().run(client._client.connect(wait=False))
    client._entered = True
    try:
        yield client
    finally:
        client.close()


def relay_of_client(sessions: Any) -> None:
    with opened() as client:
        client.relay(OUTBOX, sessions)


def relay_of_async_client(sessions: Any) -> None:
    with opened() as client:

        async def relay() -> None:
            client._client.relay(OUTBOX, sessions)

        loop_thread().run(relay())


class Nowhere(Publisher):
    messages_max = 1

    async def open(self) -> Any: ...
    async def publish(self, *_: Any) -> Any: ...
    async def recover(self, *_: Any) -> Any: ...


#: Every public function with an argument ``sessions``. A consumer takes the kind that its handler needs: see below.
PLACES: dict[str, Place] = {
    "Client.answer_checks": Place(lambda made: Client(URL, group="g").answer_checks(MARKERS, made), "blocking"),
    "AsyncClient.answer_checks": Place(
        lambda made: AsyncClient(URL, group="g").answer_checks(MARKERS, made), "blocking async"
    ),
    "App.answer_checks": Place(lambda made: App(URL, group="g").answer_checks(MARKERS, made), "blocking async"),
    "App": Place(lambda made: App(URL, group="g", sessions=made).answer_checks(MARKERS), "blocking async"),
    "Client.relay": Place(relay_of_client, "blocking", takes_engines=True),
    "AsyncClient.relay": Place(relay_of_async_client, "blocking async", takes_engines=True),
    "App.relay": Place(
        lambda made: App(URL, group="g").relay(OUTBOX, sessions=made), "blocking async", takes_engines=True
    ),
    "Outbox.relay": Place(lambda made: OUTBOX.relay(made, Nowhere()), "blocking async", takes_engines=True),  # type: ignore[abstract]
    "MarkerTable.checker": Place(MARKERS.checker, "blocking async"),
}
#: Other tests: of consumers, below; and what relays of clients and apps pass on to.
ELSEWHERE = {"App.consumer", "Outbox.bind_relay"}
#: What a worker calls with the sessions that its app has taken.
OF_WORKERS = {f"{one.__name__}.require_tables" for one in (MarkerTable, Inbox, Barrier, Outbox)}


def test_every_place_is_in_the_table() -> None:
    classes = (Client, AsyncClient, App, MarkerTable, Inbox, Barrier, Outbox)
    found = {
        f"{one.__name__}.{name}".removesuffix(".__init__")
        for one in classes
        for name, function in inspect.getmembers(one, inspect.isfunction)
        if (name == "__init__" or not name.startswith("_")) and "sessions" in inspect.signature(function).parameters
    }
    assert found - ELSEWHERE - OF_WORKERS == PLACES.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLACES)
def test_a_place_takes_the_sessions_that_work_there_and_refuses_the_others(name: str, kind: str) -> None:
    place = PLACES[name]
    for made in [*KINDS[kind], *([ENGINES[kind]] if place.takes_engines else [])]:
        if kind in place.takes.split():
            place.call(made)
        else:
            with pytest.raises(UsageError, match=rf"{name} needs {place.takes} sessions, not {kind} ones"):
                place.call(made)


class Annotated(NamedTuple):
    kind: str
    annotation: Any


ANNOTATIONS = [Annotated("any", Any), Annotated("blocking", Session), Annotated("async", AsyncSession)]


def handler(kind: str, annotation: Any, beside: str, sends: bool) -> Callable[..., Any]:
    """A function of that kind whose session has this annotation; ``beside``: where the message stands, if it takes it beside its body."""
    names = ["body", "session", *(["tx"] if sends else [])]
    hints: dict[str, Any] = {"body": bytes, "session": annotation}
    if beside:
        names.insert({"before": 1, "after": len(names)}[beside], "message")
        hints["message"] = Message
    space: dict[str, Any] = {}
    exec(f"{'async ' if kind == 'async' else ''}def handle({', '.join(names)}): ...", space)
    made: Callable[..., Any] = space["handle"]
    made.__annotations__ = hints
    return made


@pytest.mark.parametrize("beside", ["", "before", "after"])
@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("as_on_dead", [False, True])
def test_a_handler_its_session_and_the_sessions_are_of_one_kind(beside: str, sends: bool, as_on_dead: bool) -> None:
    looked = 0
    for function, annotated, sessions in product(KINDS, ANNOTATIONS, KINDS):
        looked += 1
        app = App(URL, group="g", sessions=KINDS[sessions][0])
        tested = handler(function, annotated.annotation, beside, sends)
        right = handler(sessions, Any, "", sends)
        options: dict[str, Any] = {"inbox": INBOX, "outbox": OUTBOX if sends else None}
        if as_on_dead:
            options["on_dead"] = tested

        def register() -> None:
            app.consumer("t", group="g", **options)(right if as_on_dead else tested)  # noqa: B023

        if function == sessions and annotated.kind in ("any", function):
            register()
        else:
            with pytest.raises(UsageError, match=r"is a (plain|coroutine) function") as error:
                register()
            assert "ession" in error.value.hint
    assert looked == 12


#: Calls with one session, of a kind.
CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "inbox.claim": ("blocking", lambda session: INBOX.claim(session, SimpleNamespace(message_id="m"), group="g")),
    "barrier.claim": ("blocking", lambda session: BARRIER._claim(session, None)),  # type: ignore[arg-type]
    "markers.prune": ("blocking", lambda session: MARKERS.prune(session, older_than_s=86_400, undecided=[])),
    "markers.upgrade": ("blocking", MARKERS.upgrade),
    "markers.restored": ("blocking", MARKERS.restored),
    "markers.prune_async": (
        "async",
        lambda session: loop_thread().run(
            MARKERS.prune_async(session, older_than_s=86_400, undecided=AsyncClient(URL).undecided)
        ),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_refuses_a_session_of_the_other_kind(name: str) -> None:
    kind, call = CALLS[name]
    other = KINDS["async" if kind == "blocking" else "blocking"][0]()
    needed = "a Session, not AsyncSession" if kind == "blocking" else "an AsyncSession, not Session"
    with pytest.raises(UsageError, match=rf"{name} needs {needed}"):
        call(other)
