"""Which tables of halfmq a ``MetaData`` has: created, upgraded, and printed together, by what each of them says of itself.

Whatever declares tables (``MarkerTable``, ``Inbox``, ``Barrier``, ``Outbox``) registers itself in ``MetaData.info``, so that nobody has to
name them. The tables themselves have nothing in ``Table.info``, which Alembic would write into migrations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from sqlalchemy import Connection, Engine, MetaData, Table, create_mock_engine, event, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import DDL

from halfmq.client.log import logger
from halfmq.client.user_code import RunBlocking
from halfmq.errors import UsageError
from halfmq.sql.alchemy.connection_events import refuse_rows_of
from halfmq.sql.alchemy.database import engine_of
from halfmq.sql.alchemy.errors import no_table, place, reason
from halfmq.sql.rules.marker import WhichUndecided

_log = logger(__name__)

#: Key in ``MetaData.info``.
_KEY: Final = "halfmq"


class Upgrade(NamedTuple):
    """One difference between the table of an earlier release and that of this one.

    ``is_needed`` looks at the database, since tables have no version: they are created by migrations as well. A new difference is one more
    element of ``Declared.upgrades``, after all others; old ones stay.
    """

    #: For people: ``mq_tx: the outcome 'P'``.
    what: str
    is_needed: Callable[[Connection], bool]
    apply: Callable[[Connection], None]


class Declared:
    """What is declared in a ``MetaData``: one or more tables, and what belongs to them."""

    #: ``markers``, ``inbox``, ``barrier`` or ``outbox``.
    kind: ClassVar[str]

    @property
    def tables(self) -> tuple[Table, ...]:
        """Its tables, in the order in which they are created."""
        raise NotImplementedError

    @property
    def upgrades(self) -> tuple[Upgrade, ...]:
        """From the earliest release on, in the order in which they are applied."""
        return ()

    @property
    def storage(self) -> Mapping[Table, Mapping[str, str]]:
        """Storage parameters on PostgreSQL."""
        return {}

    async def require_tables(self, sessions: Any, run_blocking: RunBlocking) -> None:
        """For a process that begins to use it with ``sessions``: its tables are there, as far as the database can be asked now.

        Raises:
            MissingTable: one is not. UsageError: one is from an earlier release.
        """
        try:
            engine = engine_of(sessions, self.tables[0])
        except Exception:  # noqa: BLE001 - a factory of the application's own: what it opens is known when it is used
            return
        try:
            if isinstance(engine, AsyncEngine):
                async with engine.connect() as connection:
                    await connection.run_sync(require, self.tables)
            else:
                await run_blocking(_require_on, engine, self.tables)
        except (SQLAlchemyError, OSError) as error:
            _log.warning("%s cannot be asked for the tables of halfmq: %s", place(engine.url), reason(error))

    def fill(self, connection: Connection) -> None:
        """Insert the rows that its tables have from the beginning, as far as they are missing."""

    def prune_page(self, connection: Connection, older_than_s: float, undecided: WhichUndecided | None) -> int:
        """Delete old rows in the transaction of ``connection``. Returns the number deleted; commit, and repeat until it is 0.

        ``undecided``: only for markers, which need it.

        Raises:
            UsageError: ``older_than_s`` is too short.
        """
        raise NotImplementedError


def declare(metadata: MetaData, what: Declared) -> None:
    """Register ``what``, whose tables are in ``metadata``. On PostgreSQL ``create_all`` then sets their storage parameters."""
    refuse_rows_of(what.tables)
    metadata.info.setdefault(_KEY, []).append(what)
    for table, parameters in what.storage.items():
        setting = DDL(f"ALTER TABLE %(fullname)s SET ({_listed(parameters)})")  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", setting.execute_if(dialect="postgresql"))


def declared_in(metadata: MetaData) -> list[Declared]:
    """What was registered, in the order in which it was."""
    return list(metadata.info.get(_KEY, ()))


def tables_of(metadata: MetaData) -> list[Table]:
    """The tables of halfmq in ``metadata``."""
    return [table for one in declared_in(metadata) for table in one.tables]


def metadata_of(found: Any) -> list[MetaData]:
    """The ``MetaData`` with tables of halfmq of one that was loaded: itself, that of a declarative class, or those of ``App.declared()``.

    Raises:
        UsageError: there is none.
    """
    parts = found if isinstance(found, list) else [found]
    holders = [
        part if isinstance(part, MetaData) else getattr(part, "metadata", None) or _of_table(part) for part in parts
    ]
    made = {id(one): one for one in holders if isinstance(one, MetaData) and declared_in(one)}
    if not made:
        raise UsageError(
            "it has no tables of halfmq",
            hint="name a MetaData in which MarkerTable, Inbox, Barrier or Outbox is declared, or an App that uses them",
        )
    return list(made.values())


def _of_table(part: Any) -> Any:
    return getattr(getattr(part, "table", None), "metadata", None)


def create_tables(connection: Connection, metadata: MetaData) -> list[str]:
    """Create the tables of halfmq in ``metadata`` that are missing, and what belongs to them: rows that they have from the beginning, and
    on PostgreSQL the storage parameters that nobody has set. In the transaction of ``connection``, as far as the database can do that.

    Returns what was done, for people. Harmless if nothing is missing. Asynchronously: ``await connection.run_sync(create_tables,
    metadata)``.

    Raises:
        UsageError: a table that is there lacks a column: ``upgrade_tables``, or it is somebody else's.
    """
    return [done for one in declared_in(metadata) for done in _created(connection, one)]


def _created(connection: Connection, one: Declared) -> Iterator[str]:
    for table in one.tables:
        if not exists_on(connection, table):
            table.create(connection)
            yield f"created {table.fullname}"
    require(connection, one.tables)
    for table, parameters in one.storage.items():
        if missing := _not_set(connection, table, parameters):
            connection.execute(text(f"ALTER TABLE {_quoted(connection, table)} SET ({_listed(missing)})"))
            yield f"set {_listed(missing)} of {table.fullname}"
    one.fill(connection)


def upgrade_tables(connection: Connection, metadata: MetaData) -> list[str]:
    """Bring the tables of halfmq in ``metadata`` from an earlier release up to date, in the transaction of ``connection``.

    Returns what was done, for people. Harmless if nothing is to be done. Missing tables are left to ``create_tables``.

    Raises:
        UsageError: a table lacks a column with which no release created it.
    """
    return [done for one in declared_in(metadata) for done in _upgraded(connection, one)]


def _upgraded(connection: Connection, one: Declared) -> Iterator[str]:
    if all(exists_on(connection, table) for table in one.tables):
        for upgrade in one.upgrades:
            if upgrade.is_needed(connection):
                upgrade.apply(connection)
                yield upgrade.what
        require(connection, one.tables)


def ddl_of(metadata: MetaData, dialect: str) -> list[str]:
    """The statements that create the tables of halfmq in ``metadata`` on ``dialect``: ``postgresql``, ``sqlite``, ``mysql``, ``mariadb``.

    Raises:
        UsageError: SQLAlchemy knows no such dialect.
    """
    statements = []

    def print_it(statement: Any, *_: Any, **__: Any) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)).strip())

    try:
        engine = create_mock_engine(make_url(f"{dialect}://"), print_it)
    except (ArgumentError, ModuleNotFoundError) as error:
        raise UsageError(f"no dialect {dialect!r}: {error}", hint="postgresql, sqlite, mysql or mariadb") from error
    for table in tables_of(metadata):
        table.create(engine, checkfirst=False)
    return statements


def schema_on(bind: Connection | Engine, table: Table) -> str | None:
    """The table's schema on ``bind``; with ``schema_translate_map`` one pool may serve several schemas."""
    schemas = bind.get_execution_options().get("schema_translate_map") or {}
    schema: str | None = schemas.get(table.schema, table.schema)
    return schema


def exists_on(connection: Connection, table: Table) -> bool:
    """Whether the table is in the database."""
    # A new inspector each time: it caches.
    return inspect(connection).has_table(table.name, schema=schema_on(connection, table))


def require(connection: Connection, tables: Sequence[Table]) -> None:
    """SQLite reports what is missing as it reports a database that is away, and every database only when a statement needs it.

    Raises:
        MissingTable: a table is not in the database. UsageError: one lacks a column.
    """
    inspector = inspect(connection)
    for table in tables:
        schema, where = schema_on(connection, table), place(connection.engine.url)
        if not inspector.has_table(table.name, schema=schema):
            raise no_table(table.fullname, connection)
        missing = {column.name for column in table.columns} - {
            column["name"] for column in inspector.get_columns(table.name, schema=schema)
        }
        if missing:
            raise UsageError(
                f"the table {table.fullname} in {where} has no column {', '.join(sorted(missing))}",
                hint="`halfmq db upgrade` brings tables of an earlier release up to date",
            )


def _require_on(engine: Engine, tables: Sequence[Table]) -> None:
    with engine.connect() as connection:
        require(connection, tables)


def _quoted(connection: Connection, table: Table) -> str:
    preparer = connection.dialect.identifier_preparer
    schema = schema_on(connection, table)
    return f"{preparer.quote_schema(schema)}.{preparer.quote(table.name)}" if schema else preparer.quote(table.name)


def _listed(parameters: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in parameters.items())


def _not_set(connection: Connection, table: Table, parameters: Mapping[str, str]) -> dict[str, str]:
    """Those of ``parameters`` that the table does not have; an administrator's values stay."""
    if connection.dialect.name != "postgresql":
        return {}
    options = connection.scalar(
        select(text("reloptions")).select_from(text("pg_class")).where(text("oid = CAST(:name AS regclass)")),
        {"name": _quoted(connection, table)},
    )
    known = {option.partition("=")[0] for option in options or ()}
    return {name: value for name, value in parameters.items() if name not in known}
