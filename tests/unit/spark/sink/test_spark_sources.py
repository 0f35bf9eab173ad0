"""Every source of streams that the installed Spark has is in the table of kinds: a new one must be looked at, and is red here first."""

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest

from halfmq.spark.sink.checkpoint import KINDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JARS: Final = Path(pyspark.__file__).parent / "jars"
SERVICES: Final = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
SQL: Final = "org.apache.spark.sql.execution"
#: Not for our sink: Spark refuses Python sinks in continuous and in real-time mode.
REFUSED: Final = "refused"
#: Around another one, whose offsets it has.
WRAPPER: Final = "wrapper"

#: Implementations of SparkDataStream -> kind.
STREAMS: Final = {
    f"{SQL}.streaming.runtime.FileStreamSource": "files",
    f"{SQL}.streaming.sources.RateStreamMicroBatchStream": "rate",
    f"{SQL}.streaming.sources.RatePerMicroBatchStream": "rate-micro-batch",
    f"{SQL}.streaming.sources.TextSocketMicroBatchStream": "socket",
    # Ours is one of them.
    f"{SQL}.datasources.v2.python.PythonMicroBatchStream": "unknown",
    f"{SQL}.datasources.v2.python.PythonMicroBatchStreamWithAdmissionControl": "unknown",
    f"{SQL}.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow": "unknown",
    # For tests of Spark: a number, and rows that exist only in memory.
    f"{SQL}.streaming.runtime.MemoryStream": "socket",
    f"{SQL}.streaming.sources.LowLatencyMemoryStream": REFUSED,
    f"{SQL}.streaming.sources.ContinuousMemoryStream": REFUSED,
    f"{SQL}.streaming.continuous.RateStreamContinuousStream": REFUSED,
    f"{SQL}.streaming.continuous.TextSocketContinuousStream": REFUSED,
    f"{SQL}.streaming.runtime.AvailableNowDataStreamWrapper": WRAPPER,
    f"{SQL}.streaming.runtime.AvailableNowMicroBatchStreamWrapper": WRAPPER,
    f"{SQL}.streaming.runtime.AvailableNowSourceWrapper": WRAPPER,
}
#: What ``format`` finds by a name -> kind, or "" if it is no source of streams.
PROVIDERS: Final = {
    **dict.fromkeys(
        [
            f"{SQL}.datasources.v2.csv.CSVDataSourceV2", f"{SQL}.datasources.v2.json.JsonDataSourceV2",
            f"{SQL}.datasources.v2.parquet.ParquetDataSourceV2", f"{SQL}.datasources.v2.text.TextDataSourceV2",
            f"{SQL}.datasources.orc.OrcFileFormat", f"{SQL}.datasources.xml.XmlFileFormat",
            f"{SQL}.datasources.binaryfile.BinaryFileFormat", "org.apache.spark.sql.hive.orc.OrcFileFormat",
            "org.apache.spark.sql.hive.execution.HiveFileFormat", "org.apache.spark.ml.source.libsvm.LibSVMFileFormat",
            "org.apache.spark.ml.source.image.ImageFileFormat",
        ],
        "files",
    ),
    f"{SQL}.streaming.sources.RateStreamProvider": "rate",
    f"{SQL}.streaming.sources.RatePerMicroBatchProvider": "rate-micro-batch",
    f"{SQL}.streaming.sources.TextSocketSourceProvider": "socket",
    f"{SQL}.datasources.jdbc.JdbcRelationProvider": "",
    f"{SQL}.datasources.noop.NoopDataSource": "",
    f"{SQL}.streaming.ConsoleSinkProvider": "",
    f"{SQL}.datasources.v2.state.metadata.StateMetadataSource": "",
    f"{SQL}.datasources.v2.state.StateDataSource": "",
}  # fmt: skip
#: Published apart from Spark; not in PySpark's wheel.
APART: Final = {"kafka", "delta", "halfmq"}
_STREAM: Final = "org/apache/spark/sql/connector/read/streaming/SparkDataStream"
_ABSTRACT: Final = 0x0600  # ACC_INTERFACE | ACC_ABSTRACT


def test_every_stream_of_spark_is_of_a_known_kind() -> None:
    assert set(_streams()) == STREAMS.keys()


def test_every_name_for_format_is_of_a_known_kind() -> None:
    assert set(_providers()) == PROVIDERS.keys()


def test_every_kind_has_a_source() -> None:
    assert KINDS.keys() == {*STREAMS.values(), *APART} - {REFUSED, WRAPPER}
    assert KINDS.keys() >= set(PROVIDERS.values()) - {""}


def _providers() -> Iterator[str]:
    for jar in JARS.glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as opened:
            if SERVICES in opened.namelist():
                lines = opened.read(SERVICES).decode().splitlines()
                yield from (line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _streams() -> Iterator[str]:
    """Names of the classes in Spark's jars that implement SparkDataStream, also through others."""
    above: dict[str, list[str]] = {}
    concrete: list[str] = []
    for jar in JARS.glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as opened:
            for name in opened.namelist():
                if name.startswith("org/apache/spark/sql/") and name.endswith(".class"):
                    flags, this, above_this = _class_file(opened.read(name))
                    above[this] = above_this
                    if not flags & _ABSTRACT:
                        concrete.append(this)

    def is_stream(name: str) -> bool:
        return name == _STREAM or any(map(is_stream, above.get(name, ())))

    return (name.replace("/", ".") for name in concrete if is_stream(name))


def _class_file(content: bytes) -> tuple[int, str, list[str]]:
    """(access flags, name, names of the superclass and the interfaces), by the Java Virtual Machine Specification, 4.1 and 4.4."""
    constants: dict[int, bytes | int] = {}
    at, number = 10, 1
    while number < struct.unpack_from(">H", content, 8)[0]:
        tag = content[at]
        if tag == 1:  # Utf8
            length = struct.unpack_from(">H", content, at + 1)[0]
            constants[number] = content[at + 3 : at + 3 + length]
            at += 3 + length
        elif tag in (7, 8, 16, 19, 20):  # Class, String, MethodType, Module, Package
            constants[number] = struct.unpack_from(">H", content, at + 1)[0]
            at += 3
        elif tag in (5, 6):  # Long, Double: two places
            at, number = at + 9, number + 1
        else:
            at += 4 if tag == 15 else 5
        number += 1
    flags, this, superclass, count = struct.unpack_from(">HHHH", content, at)
    others = [superclass, *struct.unpack_from(f">{count}H", content, at + 8)]

    def name(index: int) -> str:
        place = constants[index]
        assert isinstance(place, int)
        text = constants[place]
        assert isinstance(text, bytes)
        return text.decode()

    return flags, name(this), [name(index) for index in others if index]
