"""What Spark's Python processes import: it starts one for each plan, each stream, each task and each end of a batch."""

import subprocess
import sys

import pytest

_PARTS = ("halfmq.spark.source", "halfmq.spark.sink.writer", "halfmq.spark.files.direct_reader", "halfmq.spark.network.raw_reader")  # fmt: skip


@pytest.mark.slow
def test_a_process_of_spark_imports_no_pandas_before_it_needs_it() -> None:
    """Pyarrow imports it for the first array of Python's objects, which must therefore not be a constant of a module."""
    program = f"import sys, {', '.join(_PARTS)}; print('pyarrow' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
