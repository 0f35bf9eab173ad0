"""RocketMQ's published Java clients and mqadmin as users of a real broker with TLS: each with no more rights than docs/users.md says, and
without one of them refused with the name of the user and of the right.

Clients log most refusals and go on; what an operator has in every case is the audit log.
"""

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from halfmq.broker.config import AUDIT_NAME
from halfmq.client.blocking import Connection
from halfmq.client.sync import Client
from halfmq.model.address import Address, parse_url
from halfmq.wire.remoting.codes import RequestCode
from tests.compat.java_runs import QUICK_REBALANCE, ProgramFailed, run
from tests.compat.test_mqadmin import Walk, compared, printed
from tests.compat.test_tls import names, options, required, trusting
from tests.compat.toolchain import VERSIONS, client_classpath
from tests.support.certificates import Authority, Issued
from tests.support.served import Served
from tests.support.served_users import ServedUsers, audited
from tests.support.tls_users import TlsUsers
from tests.support.user_rights import rights_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(300)]

#: Of names, as ``Env`` in Java makes them.
PREFIX: Final = "c-Users-"


class Run(NamedTuple):
    """A program of ``Users.java`` as a user."""

    role: str
    user: str
    rights: tuple[str, ...]
    #: The right that it lacks; "": none.
    lacks: str = ""
    #: The other end of an exchange, which has all its rights.
    other: str = ""


def program_rights(role: str, user: str) -> tuple[str, ...]:
    """As the page has them."""
    topic = f"{PREFIX}{user}-topic"
    match role:
        case "send" | "transactions":
            return rights_of("producer", TOPIC=topic, GROUP=f"{PREFIX}{user}-group")
        case "consume":
            return rights_of("consumer", TOPIC=topic, GROUP=f"{PREFIX}{user}-group")
        case "request":
            return rights_of("who requests", TOPIC=topic, GROUP=f"{PREFIX}{user}-requesters")
        case _:
            return rights_of(
                "who replies", TOPIC=topic, GROUP=f"{PREFIX}{user}-consumers", REPLIERS=f"{PREFIX}{user}-repliers"
            )


def runs() -> Iterator[Run]:
    """Of each role one with all rights, and one without each of them."""
    for role in ("send", "transactions", "consume", "request", "reply"):
        for number, _ in enumerate(("", *program_rights(role, "x"))):
            user = f"{role}-{number}"
            rights = program_rights(role, user)
            lacks = rights[number - 1] if number else ""
            other = f"{user}-other" if role in ("request", "reply") else ""
            yield Run(role, user, tuple(one for one in rights if one != lacks), lacks, other)


RUNS: Final = tuple(runs())


@pytest.fixture(scope="module")
def server(authority: Authority) -> Issued:
    return authority.issue("server")


def other_rights(run: Run) -> tuple[str, ...]:
    """Of the other end, whose names are those of the run."""
    return program_rights("reply" if run.role == "request" else "request", run.user)


def refused(run: Run) -> str:
    """What the broker says to a program that lacks a right, for the first thing that it cannot do without it."""
    right, scope, name = run.lacks.split(":")
    if (run.role, scope, right) in (("consume", "topic", "consume"), ("reply", "topic", "consume")):
        right = "describe"  # it finds no route
    return f"user '{run.user}' has no right to {right} on {scope} '{name}'"


def refusals(broker: Served) -> str:
    """Of the audit log."""
    return "\n".join(one["text"] for one in audited(broker) if one["event"] == "refused")


def client_logs(home: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in home.rglob("*.log"))


@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_do_what_their_users_may_and_nothing_else(
    version: str, serve: Callable[..., Served], authority: Authority, server: Issued, tmp_path: Path
) -> None:
    """All programs run beside each other, each on a topic of its own."""
    client_classpath(version)
    key = str(tmp_path / "secrets.key")
    broker = serve("--secrets-key-file", key, "--check-interval-ms", "1000", *required(server))
    users = ServedUsers(broker, tmp_path, authority.certificate)
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(users.add, one.user, *one.rights) for one in RUNS]
        made += [threads.submit(users.add, one.other, *other_rights(one)) for one in RUNS if one.other]
    for one in made:
        one.result()
    with Client(users.url("alice"), group="anybody") as mq:
        for run_ in RUNS:
            mq.send(
                f"{PREFIX}{run_.user}-topic", "first"
            )  # who is refused later is so for his rights, not for want of the topic
    until, home = tmp_path / "until", tmp_path / "java"
    jvm = (
        *QUICK_REBALANCE, *options(trusting(authority)), f"-Dsecrets={tmp_path}", f"-Dusers.until={until}",
        "-Dusers.refused=" + ",".join(one.user for one in RUNS if one.lacks),
        "-Dusers.runs=" + ",".join(":".join(filter(None, (one.role, one.user, one.other))) for one in RUNS),
    )  # fmt: skip
    wanted = {one.user: refused(one) for one in RUNS if one.lacks}
    with ThreadPoolExecutor() as threads:
        java = threads.submit(run, version, names(broker), home, "Users", options=jvm)
        try:
            wait_until(
                lambda: all(text in refusals(broker) for text in wanted.values()),
                "a refusal of each",
                unless=lambda: java.done() and java.result(),
            )
        finally:
            until.touch()
        results = java.result()["Users"]
    said = client_logs(home)
    for one in RUNS:
        result = results[one.user]
        if one.lacks:
            told = result.get("error") or result.get("replyError") or said
            assert wanted[one.user] in told, (one, result)
            assert not {"sent", "checked", "reply"} & set(result), (one, result)
            assert not result.get("seen"), (one, result)
            assert f"user '{one.user}' has no right" in refusals(broker)
            continue
        assert "error" not in result, (one, result)
        assert f"user '{one.user}'" not in refusals(broker), "it has all that it asks for"
        match one.role:
            case "send":
                assert result == {"sent": "SEND_OK"}
            case "transactions":
                assert result == {"checked": ["UNKNOW"]}
            case "consume":
                assert result == {"seen": ["first 0", "first 1"]}
            case _:
                assert result["reply"] == "re: question"
    assert read(users.url("alice"), f"{PREFIX}transactions-0-topic", 3) == ["COMMIT_MESSAGE", "UNKNOW", "first"]
    for secret in (tmp_path / one.user for one in RUNS):
        assert secret.read_text().strip() not in said + broker.log.read_text() + (broker.data / AUDIT_NAME).read_text()


def read(url: str, topic: str, count: int) -> list[str]:
    with Client(url) as mq, mq.consumer(topic, group="checking", start="earliest") as messages:
        found = [messages.get(30) for _ in range(count)]
        assert messages.get(0.5) is None
    return sorted(one.text() for one in found if one)


#: Commands of mqadmin, what each prints, and the right that the last column's users lack. Who may administer a topic sees its route, too.
ADMINISTRATION: Final = (
    ("topicList", "TBW102", "describe:broker", "describe on the broker"),
    ("updateTopic -b BROKER -t orders -r 8 -w 8", "create topic to BROKER success", "administer:topic:orders",
     "administer on topic 'orders'"),
    ("consumerProgress -g billing", "Consume Diff Total: 0", "describe:group:billing", "describe on group 'billing'"),
)  # fmt: skip


async def test_mqadmin_does_what_its_user_may_and_nothing_else(
    serve: Callable[..., Served], authority: Authority, server: Issued, tmp_path: Path
) -> None:
    broker = serve("--secrets-key-file", str(tmp_path / "secrets.key"), *required(server))
    users = await asyncio.to_thread(ServedUsers, broker, tmp_path, authority.certificate)
    await asyncio.to_thread(read_one, users.url("alice"))
    rights = [right for _, _, right, _ in ADMINISTRATION]
    all_of_them: Walk = tuple((command, (wanted,)) for command, wanted, _, _ in ADMINISTRATION)
    walks = {"alice": all_of_them, "operator": all_of_them}
    await asyncio.to_thread(users.add, "operator", *rights)
    for number, (command, _, right, lacks) in enumerate(ADMINISTRATION):
        name = f"without-{number}"
        await asyncio.to_thread(users.add, name, *(one for one in rights if one != right))
        walks[name] = ((command, ("CODE: 16", f"user '{name}' has no right to {lacks}")),)
    for name, walk in walks.items():
        home = tmp_path / f"home-{name}"
        (home / "conf").mkdir(parents=True)
        secret = (tmp_path / name).read_text().strip()
        (home / "conf" / "tools.yml").write_text(f"accessKey: {name}\nsecretKey: {secret}\n")
        tls = options(trusting(authority))
        compared(broker, walk, await printed(broker, home, walk, f"-Drocketmq.home.dir={home}", *tls))


def read_one(url: str) -> None:
    """A message in ``orders``, which group ``billing`` has read."""
    with Client(url, group="anybody") as mq:
        mq.send("orders", "x")
        with mq.consumer("orders", group="billing", start="earliest") as messages:
            message = messages.get(30)
            assert message is not None
            message.ack()


#: How often the test ends the connections.
CUTS: Final = 3
#: Of ``Steady.java``.
STEADY: Final = (
    "send:topic:c-Steady-topic", "send:group:c-Steady-keeping", "send:group:c-Steady-opening",
    "consume:topic:c-Steady-topic", "consume:group:c-Steady-readers",
)  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_secret_and_certificate_are_replaced_while_java_sends_and_nothing_is_lost_or_twice(
    version: str, serve: Callable[..., Served], authority: Authority, tmp_path: Path
) -> None:
    """A producer keeps the secret with which it was made; one after the other gets it from its file. The old one stays valid meanwhile.

    4.9.7 does not notice that a connection has ended under a request, and waits for its response as long as it may: that one has failed
    then, whether the broker has it or not.
    """
    client_classpath(version)
    site = TlsUsers(tmp_path, authority, serve)
    site.users.add("java", *STEADY)
    stop = tmp_path / "stop"
    jvm = (*options(trusting(authority)), f"-Dsteady.until={stop}", "-Duser=java", f"-Dsecrets={tmp_path}")

    def stored() -> int:
        security = parse_url(site.users.url("alice")).security
        with closing(Connection.open(Address("127.0.0.1", site.served.port), security)) as connection:
            answer = connection.receive(connection.send(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
        return int(json.loads(answer.body)["table"]["msgPutTotalTodayNow"])

    with ThreadPoolExecutor() as threads:
        java = threads.submit(run, version, names(site.served), tmp_path / "home", "Steady", options=jvm)

        def goes_on() -> None:
            before = stored()
            wait_until(lambda: stored() > before + 100, "messages", unless=lambda: java.done() and java.result())

        def cut() -> None:
            site.end_connections("java", *STEADY)
            goes_on()

        try:
            goes_on()
            cut()
            new = site.rotate("java", keep_old="1h")
            cut()
            old = site.put_secret("java", new)
            site.replace_certificate("broker 1")
            cut()
        finally:
            stop.touch()
        result = java.result()["Steady"]
    unknown = {error.partition(":")[0] for error in result["errors"]} if version == "4.9.7" else set()
    # Its texts for that: of the call as a whole, of its last attempt, and of three attempts that took its 10 s together.
    waited = re.compile(r"call timeout|wait response on the channel|still failed, cost \[1\d{4}\]ms")
    assert [error for error in result["errors"] if version != "4.9.7" or not waited.search(error)] == []
    assert len(unknown) <= CUTS, result["errors"]
    assert set(Counter(result["log"]).values()) == {1}
    assert set(result["log"]) - unknown == set(result["sent"])
    assert len([text for text in result["sent"] if text.startswith("new")]) > 3
    site.users.run("rotate java --secret-from java")
    shutil.copy(old, tmp_path / "java")
    with pytest.raises(ProgramFailed, match="the signature is not one of user 'java'"):
        run(version, names(site.served), tmp_path / "late", "Steady", options=jvm)
