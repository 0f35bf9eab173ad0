"""``halfmq db``: the tables of halfmq in a database. They are found in the application's ``MetaData``, in which each
has registered itself.
"""

from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from halfmq.cli import output
from halfmq.cli.application import load_made
from halfmq.cli.exit_status import ExitStatus
from halfmq.cli.requests import TIMEOUT_S, Commands, Timeout
from halfmq.client.app import App
from halfmq.client.sync import Client
from halfmq.errors import HalfmqError, UsageError
from halfmq.sql.rules.table_identity import PRUNE_AGE_MIN_S

if TYPE_CHECKING:
    # These need the extra sql.
    from halfmq.sql.alchemy.database import Database
    from halfmq.sql.alchemy.declared import Declared

_COMMANDS: Final = Commands("halfmq db")
app = _COMMANDS.group("Create, upgrade and prune the tables of halfmq in a database; print their DDL.")
_fail = _COMMANDS.fail

_Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME",
        help="A MetaData (or declarative base) in which tables of halfmq are declared, or a halfmq.App that uses them; or a function "
        "without arguments that makes one.",
    ),
]
_DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HALFMQ_DATABASE_URL",
        help="URL of the database, such as postgresql+psycopg://HOST/NAME. Default: the sessions of the App.",
    ),
]


class _Found(NamedTuple):
    """What is at MODULE:NAME."""

    app: App | None
    #: ``MetaData`` with tables of halfmq.
    metadata: list[Any]
    declared: "list[Declared]"


def _found(target: str) -> _Found:
    found = load_made(_COMMANDS, target)
    its_app = found if isinstance(found, App) else None
    with _COMMANDS.reported():
        from halfmq.sql.alchemy.declared import declared_in, metadata_of

        try:
            metadata = metadata_of(found if its_app is None else its_app.declared())
        except UsageError as error:
            _fail(f"{target}: {error}", ExitStatus.USAGE)
    return _Found(its_app, metadata, [one for part in metadata for one in declared_in(part)])


def _database(target: str, found: _Found, url: str) -> "Database":
    from halfmq.sql.alchemy.database import Database, engine_of

    sessions = found.app and (found.app.sessions or next((one.sessions for one in found.app.outboxes()), None))
    with _COMMANDS.reported():
        if url:
            return Database.at(url)
        if sessions is None:
            _fail(f"name the database with --url: {target} has no sessions", ExitStatus.USAGE)
        return Database(engine_of(sessions, found.declared[0].tables[0]))


def _run(database: "Database", function: Callable[..., Any], *arguments: Any) -> Any:
    """One transaction."""
    with closing(database), _COMMANDS.reported():
        return database.run(lambda connection: function(connection, *arguments))


@app.command()
def sql(
    target: _Target,
    dialect: Annotated[
        str, typer.Option(help="SQLAlchemy's name of the database: postgresql, sqlite, mysql or mariadb.")
    ],
) -> None:
    """Print the statements that create the tables, with the storage parameters that they should have on PostgreSQL.

    For migrations that are written by hand. Alembic's autogenerate finds the tables by itself; what it leaves out, `halfmq db init` adds.
    """
    found = _found(target)
    with _COMMANDS.reported():
        from halfmq.sql.alchemy.declared import ddl_of

        statements = [statement for metadata in found.metadata for statement in ddl_of(metadata, dialect)]
    for statement in statements:
        output.say(*f"{statement};".replace("\t", "    ").split("\n"), "")


@app.command()
def init(target: _Target, url: _DatabaseUrl = "") -> None:
    """Create what is missing: tables, the rows that they have from the beginning, and on PostgreSQL storage parameters for autovacuum.

    Harmless if nothing is missing. Storage parameters that somebody has set stay.
    """

    def create(connection: Any, metadata: Any) -> list[str]:
        from halfmq.sql import create_tables

        return create_tables(connection, metadata)

    _do(target, url, create, "nothing was missing")


@app.command()
def upgrade(target: _Target, url: _DatabaseUrl = "") -> None:
    """Bring tables of an earlier release up to date. Harmless if they are.

    Run it before this release starts; processes of the earlier one may go on. Missing tables are created by `halfmq db init`.
    """

    def bring_up_to_date(connection: Any, metadata: Any) -> list[str]:
        from halfmq.sql import upgrade_tables
        from halfmq.sql.alchemy.declared import exists_on, tables_of

        missing = [table for table in tables_of(metadata) if not exists_on(connection, table)]
        return [
            *upgrade_tables(connection, metadata),
            *(f"there is no table {table.fullname}: `halfmq db init` creates it" for table in missing),
        ]

    _do(target, url, bring_up_to_date, "everything is up to date")


def _do(target: str, url: str, function: Callable[..., list[str]], nothing: str) -> None:
    found = _found(target)
    database = _database(target, found, url)
    done = [line for metadata in found.metadata for line in _run(database, function, metadata)]
    output.say(*(done or [f"{database.name}: {nothing}"]))


@app.command()
def prune(
    target: _Target,
    markers: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Delete markers older than this, such as 7d, at least 1h. A broker is asked which are still needed.",
        ),
    ] = "",
    inbox: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Delete rows of inboxes older than this: longer than the broker keeps messages, or they are handled again.",
        ),
    ] = "",
    barrier: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="Delete rows of barriers older than this: longer than the broker keeps messages, or a try may be late and run.",
        ),
    ] = "",
    outbox: Annotated[
        str, typer.Option(metavar="SPAN", help="Delete messages that were published or skipped longer ago than this.")
    ] = "",
    broker: Annotated[
        str,
        typer.Option(
            envvar="HALFMQ_URL",
            help="Address of the broker, for --markers: through it all brokers with transactions of the table must be found. "
            "Default: that of the App.",
        ),
    ] = "",
    url: _DatabaseUrl = "",
    timeout: Timeout = TIMEOUT_S,
) -> None:
    """Delete old rows, 1,000 in a transaction. Only of the kinds for which an age is given."""
    given = {"markers": markers, "inbox": inbox, "barrier": barrier, "outbox": outbox}
    ages_ms = {kind: _COMMANDS.span_ms(age) for kind, age in given.items() if age}
    if not ages_ms:
        _fail("name at least one age: --markers SPAN, --inbox SPAN, --barrier SPAN or --outbox SPAN", ExitStatus.USAGE)
    if ages_ms.get("markers", PRUNE_AGE_MIN_S * 1000) < PRUNE_AGE_MIN_S * 1000:
        _fail(f"--markers {markers} is less than {PRUNE_AGE_MIN_S:.0f} seconds", ExitStatus.USAGE)
    found = _found(target)
    chosen = [one for one in found.declared if one.kind in ages_ms]
    if not chosen:
        _fail(f"{target} has no {' or '.join(ages_ms)}", ExitStatus.USAGE)
    broker = broker or (found.app.client().url if found.app else "")
    if "markers" in ages_ms and not broker:
        _fail("--markers needs --broker: markers of undecided transactions stay", ExitStatus.USAGE)
    database = _database(target, found, url)
    try:
        with Client(broker, timeout=timeout) if "markers" in ages_ms else nullcontext() as client:
            for one in chosen:
                number = 0
                while gone := _run(database, one.prune_page, ages_ms[one.kind] / 1000, client and client.undecided):
                    number += gone
                output.say(f"{number} rows of {one.tables[0].fullname} deleted")
    except HalfmqError as error:
        _fail(str(error), ExitStatus.FAILED)
