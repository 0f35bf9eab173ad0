"""Makes ``format("halfmq")`` known to Spark without a call: Spark looks for packages named ``pyspark_*`` with a ``DefaultSource``."""

from halfmq.spark import HalfmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
