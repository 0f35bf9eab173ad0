"""Rows of a database into Parquet files, in pieces, so that memory stays bounded.

The query is one statement, and so one snapshot of the database. Drivers that can are asked for a server-side cursor.

Types follow the values, since the types of a query are not known to all drivers: each piece gets its own, and at the end pieces that differ
(a column that was null at first, decimals of another scale) are written again with the common type.
"""

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy import exc

from halfmq.errors import ConnectError, MissingDependency, UsageError

#: Rows in memory at a time.
PIECE_ROWS: Final = 50_000
_LISTED_MAX: Final = 20
_DECIMAL_DIGITS: Final = 38


class Copied(NamedTuple):
    """``files``: empty without rows. A column that was always null has type ``pa.null()`` in ``schema``, and is text in the files."""

    files: tuple[Path, ...]
    schema: pa.Schema
    rows: int


def shown(url: str) -> str:
    """The URL without its password. Raises UsageError: it is none."""
    return _parsed(url).render_as_string(hide_password=True)


def copy(
    url: str, table: str | None, query: str | None, columns: Sequence[str], where: str | None, directory: Path
) -> Copied:
    """Copy ``columns`` of a table, or of the result of ``query``, into Parquet files of ``directory``.

    ``where``: condition in SQL, of a table only. Times without zone stay so; times with one become UTC.

    Raises:
        UsageError: no such table or column, wrong SQL, a value of a type that cannot be compared.
        MissingDependency: the driver of the database is not installed.
        ConnectError: no connection to the database.
    """
    engine = _engine(url)
    try:
        with _connected(engine) as connection:
            streaming = {"stream_results": True, "max_row_buffer": PIECE_ROWS}
            try:
                if query is not None:
                    result = connection.execution_options(**streaming, no_parameters=True).exec_driver_sql(query)
                else:
                    assert table is not None
                    statement = _select(connection, table, columns, where)
                    result = connection.execution_options(**streaming).execute(statement)
                places = _places(list(result.keys()), columns)
                return _write(_pieces(result), columns, places, directory)
            except exc.DBAPIError as error:
                raise UsageError(f"the database refuses the query: {_first_line(error)}") from error
            except exc.ResourceClosedError as error:
                raise UsageError("--query returns no rows", hint="a SELECT") from error
    finally:
        engine.dispose()


def _parsed(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except exc.ArgumentError as error:
        raise UsageError(
            "--database is not a URL of SQLAlchemy", hint="sqlite:///shop.db, postgresql://USER:PASSWORD@HOST/NAME"
        ) from error


def _engine(url: str) -> sa.Engine:
    parsed = _parsed(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        # Opening would create it.
        name = parsed.database or ""
        if name and not name.startswith("file:") and not Path(name).is_file():
            raise UsageError(f"there is no database file {name}")
    try:
        engine = sa.create_engine(parsed, poolclass=sa.NullPool)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"the driver of {shown(url)} is not installed: {error}",
            hint=f"install the package with this module, or name a driver that is installed: {backend}+DRIVER://...",
        ) from error
    except exc.NoSuchModuleError as error:
        raise UsageError(
            f"SQLAlchemy knows no database {parsed.drivername}", hint="sqlite, postgresql, mysql, ..."
        ) from error
    except (exc.ArgumentError, TypeError, ValueError) as error:
        raise UsageError(f"--database {shown(url)}: {error}") from error
    if engine.dialect.is_async:
        raise UsageError(
            f"{parsed.drivername} is an asynchronous driver",
            hint=f"{backend}://..., or another driver: {backend}+DRIVER://",
        )
    return engine


def _connected(engine: sa.Engine) -> sa.Connection:
    try:
        return engine.connect()
    except exc.DBAPIError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise ConnectError(f"no connection to {where}: {_first_line(error)}") from error


def _first_line(error: exc.DBAPIError) -> str:
    return next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)


def _select(connection: sa.Connection, table: str, columns: Sequence[str], where: str | None) -> Any:
    schema, _, name = table.rpartition(".")
    try:
        found = sa.Table(name, sa.MetaData(), schema=schema or None, autoload_with=connection, resolve_fks=False)
    except exc.NoSuchTableError as error:
        inspector = sa.inspect(connection)
        names = sorted([*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)])
        raise UsageError(f"the database has no table {table}", hint=_listed("it has", names)) from error
    _places([column.name for column in found.columns], columns)
    statement = sa.select(*(found.columns[name] for name in columns))
    # A colon in the text is none of a parameter.
    return statement if where is None else statement.where(sa.text(f"({where})".replace(":", "\\:")))


def _places(names: Sequence[str], columns: Sequence[str]) -> list[int]:
    unknown = [one for one in columns if one not in names]
    if unknown:
        raise UsageError(f"the table has no column {', '.join(unknown)}", hint=_listed("it has", names))
    return [names.index(one) for one in columns]


def _listed(before: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return f"{before} {', '.join(names[:_LISTED_MAX])}{more}" if names else f"{before} none"


def _pieces(result: Any) -> Iterator[Sequence[Any]]:
    while rows := result.fetchmany(PIECE_ROWS):
        yield rows


def _write(pieces: Iterator[Sequence[Any]], columns: Sequence[str], places: Sequence[int], directory: Path) -> Copied:
    written: list[tuple[Path, pa.Schema]] = []
    count = 0
    for rows in pieces:
        arrays = [arrow([row[place] for row in rows], name) for name, place in zip(columns, places, strict=True)]
        piece = pa.table(arrays, names=list(columns))
        path = directory / f"rows-{uuid.uuid4()}.parquet"
        pq.write_table(_storable(piece), path, coerce_timestamps="us")
        written.append((path, piece.schema))
        count += len(rows)
    schema = common([one for _, one in written], columns)
    storable = _storable(schema.empty_table()).schema
    for path, found in written:
        if found != schema:
            piece = pq.read_table(path)
            fitted = [_cast(piece[one.name], one.type, one.name) for one in storable]
            pq.write_table(pa.table(fitted, schema=storable), path, coerce_timestamps="us")
    return Copied(tuple(path for path, _ in written), schema, count)


def arrow(values: list[Any], column: str) -> pa.Array:
    """The values of a column with the type that follows from them. Raises UsageError: they have none in common, or one without an equal."""
    if any(isinstance(one, uuid.UUID) for one in values):
        values = [str(one) if isinstance(one, uuid.UUID) else one for one in values]
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        kinds = sorted({type(one).__name__ for one in values if one is not None})
        raise UsageError(
            f"column {column} has values of types {', '.join(kinds)}, which are not read: {str(error).splitlines()[0]}",
            hint="CAST it in --query",
        ) from error
    kind = array.type
    if pa.types.is_decimal(kind):
        return _cast(array, pa.decimal128(_DECIMAL_DIGITS, min(kind.scale, _DECIMAL_DIGITS)), column)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return array.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        raise UsageError(f"column {column} has type {kind}, which cannot be compared", hint="CAST it in --query")
    return array


def _cast(values: Any, kind: pa.DataType, column: str) -> Any:
    """Raises UsageError: a value does not fit."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"column {column} has numbers that do not fit {kind}: {str(error).splitlines()[0]}",
            hint="CAST it in --query, to fewer decimal places or to text",
        ) from error


def common(schemas: Sequence[pa.Schema], columns: Sequence[str]) -> pa.Schema:
    """The schema to which all can be cast. Raises UsageError: there is none."""
    if not schemas:
        return pa.schema([(name, pa.null()) for name in columns])
    fields = []
    for name in columns:
        kinds = {one.field(name).type for one in schemas} - {pa.null()}
        if all(pa.types.is_decimal(one) for one in kinds) and len(kinds) > 1:
            fields.append((name, pa.decimal128(_DECIMAL_DIGITS, max(one.scale for one in kinds))))
            continue
        try:
            unified = pa.unify_schemas(
                [pa.schema([(name, one)]) for one in kinds or {pa.null()}], promote_options="permissive"
            )
        except pa.ArrowException as error:
            names = ", ".join(sorted(map(str, kinds)))
            raise UsageError(f"column {name} has values of types {names}", hint="CAST it in --query") from error
        fields.append((name, unified.field(name).type))
    return pa.schema(fields)


def _storable(table: pa.Table) -> pa.Table:
    """Spark does not read columns of type null."""
    fields = [pa.field(one.name, pa.string() if pa.types.is_null(one.type) else one.type) for one in table.schema]
    return table.cast(pa.schema(fields))
