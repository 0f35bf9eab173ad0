"""The commands of the pages, run as they stand against a broker; and every command and option that a page names exists."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import typer

from halfmq import Client, Outcome, compose
from halfmq.cli import main
from tests.documents.blocks import blocks_of
from tests.documents.pages import PAGES, blocks, commands, quotes
from tests.documents.shell import shell
from tests.support.served import Served

_HERE: Final = "tests/documents/test_commands.py::test_the_commands_do_what_the_page_says"


class Run(NamedTuple):
    """A command, with values for its placeholders: the words in capital letters. ``typed``: into its confirmation.
    ``says``: in what it prints. ``also``: options that only make it short."""

    says: str
    values: dict[str, str] = {}  # noqa: RUF012 - never changed
    status: int = 0
    typed: str = ""
    also: str = ""


_ORDERS: Final = {"GROUP": "orders"}
#: Every command of the blocks, in their order; what is undecided is in ``undecided``.
RUNS: Final[dict[str, Run]] = {
    "halfmq serve --data DIR": Run("stopped", also="--port 0 --name-port 0 --segment-bytes 1048576"),
    "halfmq tx list": Run("T-1"),
    "halfmq tx show TX_ID": Run("prepared by producer group orders", {"TX_ID": "T-1"}),
    "halfmq tx check TX_ID": Run("was UNKNOWN", {"TX_ID": "T-1"}, status=6),
    "halfmq tx stats": Run("orders"),
    "halfmq tx limits GROUP": Run("policy: none", _ORDERS),
    "halfmq tx commit TX_ID --operator NAME --reason TEXT": Run(
        "is COMMITTED", {"TX_ID": "T-1", "NAME": "ada", "TEXT": "late"}, typed="T-1"
    ),
    "halfmq tx commit --group GROUP --all --older SPAN --operator NAME": Run(
        "1 transactions of group orders are COMMITTED", {"GROUP": "orders", "SPAN": "0s", "NAME": "ada"}, typed="orders"
    ),
    "halfmq topic list": Run("orders"),
    "halfmq send TOPIC BODY": Run("orders[", {"TOPIC": "orders", "BODY": "hello"}),
    "halfmq consume TOPIC": Run("hello", {"TOPIC": "orders"}),
    "halfmq peek TOPIC --last 1": Run("hello", {"TOPIC": "orders"}),
    "halfmq dead list": Run("0 dead letters"),
    # tests/unit/cli/test_dead.py has some.
    "halfmq dead redrive --group GROUP --preview": Run("no such dead letter", {"GROUP": "orders"}, status=3),
    "halfmq client list": Run("of 1 clients"),
    # tests/documents/test_operations_page.py has a group with offsets.
    "halfmq group list": Run("0 groups"),
    "halfmq group reset GROUP --to TIME --preview": Run(
        "nothing to reset", {"GROUP": "orders", "TIME": "2h"}, status=3
    ),
    "halfmq group hold GROUP TOPIC...": Run("archive holds orders", {"GROUP": "archive", "TOPIC...": "orders"}),
    "halfmq coordinator list": Run("0 coordinators"),
    # tests/documents/test_exit_status.py and tests/unit/cli/test_coordinator.py forget some.
    "halfmq coordinator forget NAME --group GROUP --operator NAME --reason TEXT": Run(
        "knows no coordinator ada", {"NAME": "ada", "GROUP": "bank", "TEXT": "over"}, status=3
    ),
    # tests/documents/test_users_page.py makes some, of a broker that has users.
    "halfmq user add NAME --allow PERMISSION": Run(
        "this broker has no users", {"NAME": "ada", "PERMISSION": "'send:*'"}, status=4
    ),
    "halfmq user list": Run("this broker has no users", status=4),
    "halfmq config set SETTING VALUE --operator NAME": Run(
        "queries_max is 50", {"SETTING": "queries_max", "VALUE": "50", "NAME": "ada"}, typed="queries_max"
    ),
    "halfmq tx damaged": Run("0 findings"),
    # tests/unit/cli/test_tx.py forgets one.
    "halfmq tx forget TX_ID... --operator NAME --reason TEXT": Run(
        "no damage of transaction T-1", {"TX_ID...": "T-1", "NAME": "ada", "TEXT": "seen"}, status=3
    ),
    "halfmq tx forget --group GROUP --all --operator NAME --reason TEXT": Run(
        "group orders has no findings", {"GROUP": "orders", "NAME": "ada", "TEXT": "seen"}
    ),
    "halfmq query list": Run("0 queries"),
    # tests/documents/test_exit_status.py and tests/unit/cli/test_query.py forget some.
    "halfmq query forget NAME --operator NAME --reason TEXT": Run(
        "knows no query ada", {"NAME": "ada", "TEXT": "over"}, status=3
    ),
    "halfmq store verify DIR": Run("whole"),
    "halfmq store dump DIR": Run('"kind":"operator_acted"'),
    "halfmq check-history FILES": Run("clean", {"FILES": "history.jsonl"}),
    "halfmq context add NAME URL --use": Run("and in use", {"NAME": "prod", "URL": "rocketmq://127.0.0.1:9876"}),
    "halfmq diagnose --data DIR --log FILE": Run("halfmq-diagnosis-", {"FILE": "history.jsonl"}),
    "halfmq bench tx": Run("Measure committed transactions", also="--help"),  # tests/unit/bench measures
    "halfmq bench restart": Run("Measure start times", also="--help"),
    "halfmq group hold archive orders stock --max-age-hours 168": Run("holds orders, stock, until 7 days"),
    "halfmq group holds": Run("archive: orders, stock"),
    "halfmq group release archive": Run("holds nothing"),
    "halfmq group release audit": Run("holds nothing"),
    "halfmq tx limits orders --check-limit 15 --past-limit park --operator ada": Run("park"),
    "halfmq tx limits orders --check-limit 15 --past-limit rollback --operator ada": Run("rollback", typed="orders"),
    "halfmq tx limits orders --skip-age 72h --operator ada": Run("at 3 days"),
    "halfmq tx limits orders --past-limit wait --skip-age 0s --operator ada": Run("policy: "),
    "halfmq tx check --group GROUP --parked [--max N]": Run("no parked", {"GROUP": "orders", "[--max N]": "--max 5"}),
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", tmp_path / "broker.log", "--check-immunity-ms", "1")
    served.start()
    yield served
    served.stop()


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(tmp_path: Path, broker: Served) -> None:
    """Each once, in the order of ``RUNS``, with a producer that answers UNKNOWN. ``T-1`` and ``T-2`` are undecided at the beginning."""
    shown = [command for block in blocks_of(_HERE) for command in commands(block)]
    assert RUNS.keys() == set(shown)
    (tmp_path / "history.jsonl").write_text(
        '{"e":"began","t_us":0,"by":"shop"}\n{"e":"plain","t_us":1,"by":"shop","op":"1","message":"M","topic":"orders"}\n'
        '{"e":"seen","t_us":2,"by":"shop","reader":"r","message":"M","topic":"orders","queue":0,"queue_offset":0}\n'
    )
    environment = {"HALFMQ_URL": broker.url}
    with Client(broker.url, group="orders") as client:
        client.add_check("orders", lambda check: Outcome.UNKNOWN)
        for tx_id in ("T-1", "T-2"):
            client.prepare([compose("orders", b"one")], tx_id=tx_id, name="orders")
        for command, run in RUNS.items():
            written = command
            for name, value in run.values.items():
                assert name in written, command
                written = written.replace(name, value)
            written = written.replace("DIR", "new" if " serve " in written else "data")
            if " serve " in written:
                assert_serves(f"{written} {run.also}", tmp_path, run.says)
                continue
            done = shell(
                f"{written} {run.also}",
                tmp_path,
                status=run.status,
                typed=run.typed and f"{run.typed}\n",
                environment=environment,
            )
            assert run.says in done.stdout + done.stderr, (written, done.stdout, done.stderr)


def assert_serves(command: str, directory: Path, says: str) -> None:
    """It runs until SIGTERM, and then ends with 0."""
    log = directory / "new.log"
    shell(
        f"{command} --ports-file ports.json 2> {log} & broker=$!\n"
        "until test -s ports.json; do kill -0 $broker && sleep 0.05; done\n"
        "kill $broker; wait $broker",
        directory,
    )
    assert says in log.read_text()


@cache  # each is made when it is asked for
def tree(command: Any) -> dict[str, Any]:
    """The commands below one, by their names."""
    if not hasattr(command, "list_commands"):
        return {}
    context = typer.Context(command)
    found = {}
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        found[name] = getattr(below, "_make", lambda below=below: below)()
    return found


def options(command: Any) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}


ROOT_COMMAND: Final = typer.main.get_command(main.app)
#: Beginnings of quotations that are no command: what belongs to another program, or to the name of something.
_NOT_OURS: Final = ("halfmq[", "halfmq:", "halfmq.", "halfmq-")


def unknown_in(words: list[str]) -> str:
    """The first word of a command, without ``halfmq``, that does not exist; empty if all do."""
    command: Any = ROOT_COMMAND
    while words and (below := tree(command)) and not words[0].startswith("-"):
        if words[0] not in below:
            return "" if words[0].isupper() else words[0]
        command = below[words.pop(0)]
    known = options(command)
    return next((word for word in words if word.startswith("--") and word.partition("=")[0] not in known), "")


@pytest.mark.slow
def test_every_command_and_every_option_that_a_page_names_exists() -> None:
    looked_at = 0
    wrong = []
    for page in PAGES:
        texts = [(quote.line, quote.text) for quote in quotes(page)]
        texts += [
            (block.line, command)
            for block in blocks(page)
            if block.language in ("", "sh")
            for command in commands(block)
        ]
        for line, text in texts:
            if not text.startswith("halfmq ") or text.startswith(_NOT_OURS):
                continue
            looked_at += 1
            words = shlex.split(re.sub(r"[\[\]()`]", " ", text))[1:]
            if unknown := unknown_in(words):
                wrong.append(f"{page}:{line}: {text}: {unknown}")
    assert looked_at > 80
    assert wrong == []
    assert unknown_in(["tx", "list", "--grup", "x"]) == "--grup"
    assert unknown_in(["tx", "look"]) == "look"


#: Options of other programs, by whose they are.
_OTHERS: Final = {
    "--attributes": "mqadmin",
    "--py-files": "spark-submit",
    "--rows": "tests.bench.spark_kafka",
    "--enable-optimizations": "configure of CPython",
    "--seeds": "tests.simulation",
    "--hunters": "tests.mutation",
    "--full-refresh": "spark-pipelines",
    "--preload": "gunicorn",
    "--attempts": "manage.py halfmq_relay",
    "--shutdown-grace": "manage.py halfmq_worker",
}
#: Pages about programs of the tests, which have options of their own.
_OF_TESTS: Final = ("docs/simulation.md", "docs/soak.md")


@pytest.mark.slow
def test_every_option_that_stands_alone_is_one_of_our_commands() -> None:
    known: set[str] = set()
    waiting = [ROOT_COMMAND]
    while waiting:
        command = waiting.pop()
        known |= options(command)
        waiting += tree(command).values()
    found = {
        (word, quote.page, quote.line)
        for page in PAGES
        if page not in _OF_TESTS
        for quote in quotes(page)
        if quote.text.startswith("--")
        for word in re.findall(r"(?<![\w-])--[a-z-]+", quote.text)
    }
    assert len(found) > 60
    assert {one for one in found if one[0] not in known | _OTHERS.keys()} == set()
