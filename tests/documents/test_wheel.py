"""The built package: what it requires, that it works where nothing else is installed, and an extra installs what its feature imports."""

import ast
import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

import halfmq
from tests.documents.pages import ROOT, table
from tests.support.served import Served

#: Folder or file of src -> the extra that one installs to use it; the longest path counts. Everything else works without an extra.
EXTRA_OF: Final = {
    "halfmq/cli": "server",
    "halfmq/broker": "server",
    "halfmq/bench": "server",
    "halfmq/client/telemetry.py": "otel",
    "halfmq/django": "django",
    "halfmq/django/relay_engine.py": "sql",
    "halfmq/processes/http_port.py": "server",
    "halfmq/runtime/sealing.py": "server",
    "halfmq/sql/alchemy": "sql",
    "halfmq/relay/kafka.py": "kafka",
    "halfmq/relay/rabbitmq.py": "rabbitmq",
    "halfmq/spark": "spark",
    "halfmq/spark/jobs": "pipeline",
    "pyspark_halfmq": "spark",
}
#: (file, package) -> why it is imported without being required there.
OPTIONAL: Final = {
    ("halfmq/broker/services/payload_arrays.py", "numpy"): "faster where it is installed",
    ("halfmq/client/asyncapi.py", "pydantic"): "only for types of pydantic's, which the application has imported",
    ("halfmq/client/bodies.py", "pydantic"): "only for types of pydantic's, which the application has imported",
    ("halfmq/store/batch_entries.py", "numpy"): "faster where it is installed",
    ("halfmq/store/raw_messages.py", "numpy"): "faster where it is installed",
    ("halfmq/testing/pytest_plugin.py", "pytest"): "loaded by pytest alone",
    ("halfmq/django/relay_engine.py", "django"): "the relay of a project needs the extra django beside sql",
    ("halfmq/model/checksum.py", "zlib-ng"): "faster where it is installed; extras server and spark require it",
}
#: (extra, package) -> why it is required, though no file of the extra imports it by a statement.
NOT_IMPORTED: Final = {
    ("server", "rich"): "Typer's help; `halfmq pipeline`",
    ("server", "zlib-ng"): "by halfmq/model/checksum.py, if it is installed",
    ("spark", "zlib-ng"): "by halfmq/model/checksum.py, if it is installed",
    ("spark", "pandas"): "by PySpark, whose mapInArrow and transformWithState refuse to run without it",
    ("spark", "protobuf"): "by PySpark's worker, for transformWithState",
    ("compression", "lz4"): "by name in halfmq/wire/remoting/compression.py",
    ("compression", "zstandard"): "by name in halfmq/wire/remoting/compression.py",
}
#: What several packages have a part of -> the one that is required.
_OF_MANY: Final = {"opentelemetry": "opentelemetry-api"}
_OURS: Final = ("halfmq", "pyspark_halfmq")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path | None = None, status: int = 0) -> str:
    """Standard output and error. No checkout is on the path of its imports."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **_pip_settings()},
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    assert done.returncode == status, (command, done.stdout, done.stderr)
    return done.stdout + done.stderr


def _pip_settings() -> dict[str, str]:
    """Where packages come from: as for `make setup`."""
    kept = ("HOME", "PIP_", "SSL_", "REQUESTS_", "HTTP", "http", "no_proxy", "NO_PROXY")
    return {name: value for name, value in os.environ.items() if name.startswith(kept)}


def built(source: Path, directory: Path) -> Path:
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        directory,
        source,
    )
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def environment(directory: Path) -> Path:
    """The Python of a new environment in which nothing is installed."""
    run(sys._base_executable, "-m", "venv", "--without-pip", directory)  # type: ignore[attr-defined]
    return directory / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *what)


def installed(python: Path) -> set[str]:
    return set(
        run(python, "-c", "import importlib.metadata as m; print(*(one.name for one in m.distributions()))").split()
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("wheel")
    served = Served(work / "data", work / "broker.log")
    served.start()
    yield served
    served.stop()


_CLIENT: Final = """
import importlib, sys
import halfmq
for name in halfmq.__all__:
    getattr(halfmq, name)
for name in ("halfmq.client.admin", "halfmq.testing.history", "halfmq.errors", "halfmq.sql.rules.block"):
    importlib.import_module(name)
with halfmq.Client(sys.argv[1], group="wheel") as mq:
    with mq.begin() as tx:
        tx.send("from-a-wheel", {"number": 7}, keys=["k"])
    with mq.consumer("from-a-wheel", group="wheel-readers", start="earliest") as messages:
        message = next(iter(messages))
        print(message.json(), halfmq.__version__)
        message.ack()
"""


def test_the_client_depends_on_msgspec_only_and_works(tmp_path: Path, wheel: Path, broker: Served) -> None:
    python = environment(tmp_path / "venv")
    install(python, wheel)
    assert installed(python) == {"halfmq", "msgspec"}
    assert run(python, "-c", _CLIENT, broker.url) == f"{{'number': 7}} {halfmq.__version__}\n"
    said = run(tmp_path / "venv" / "bin" / "halfmq", "--version", status=1)
    assert re.fullmatch(r"halfmq: \w+ is not installed \(pip install 'halfmq\[server\]'\)\n", said), said


_COMPRESSION: Final = """
from halfmq.model.stored_message import SYS_COMPRESSED
from halfmq.wire.remoting.compression import decompress, LZ4, ZSTD
import lz4.frame, zstandard
print(*(decompress(done, SYS_COMPRESSED | kind) for kind, done in ((LZ4, lz4.frame.compress(b"body")), (ZSTD, zstandard.compress(b"body")))))
"""


def test_the_extra_compression_reads_what_it_says(tmp_path: Path, wheel: Path) -> None:
    python = environment(tmp_path / "venv")
    install(python, f"{wheel}[compression]")
    assert installed(python) >= {"halfmq", "msgspec", "lz4", "zstandard"}
    assert run(python, "-c", _COMPRESSION) == "b'body' b'body'\n"


_SPARK: Final = """
import sys
from halfmq import Client
from halfmq.spark import builder
with Client(sys.argv[1], group="wheel") as mq:
    mq.send("for-spark", {"number": 7})
spark = builder("wheel", "local[1]").getOrCreate()
rows = spark.read.format("halfmq").options(url=sys.argv[1], subscribe="for-spark").load()
print("read", [bytes(row.value) for row in rows.collect()])
"""


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(1_800)
def test_the_extras_spark_and_pipeline_run_where_nothing_else_is_installed(
    tmp_path: Path, wheel: Path, broker: Served
) -> None:
    python = environment(tmp_path / "venv")
    install(python, f"{wheel}[spark]")
    assert "read [b'{\"number\":7}']" in run(python, "-c", _SPARK, broker.url)
    install(python, f"{wheel}[pipeline]")
    command = tmp_path / "venv" / "bin" / "halfmq"
    run(
        command,
        "pipeline",
        "ingest",
        "--url",
        broker.url,
        "--topics",
        "for-spark",
        "--output",
        tmp_path / "out",
        "--format",
        "delta",
    )
    run(
        command,
        "pipeline",
        "report",
        "--url",
        broker.url,
        "--topics",
        "for-spark",
        "--output",
        tmp_path / "report.html",
    )
    assert "for-spark" in (tmp_path / "report.html").read_text()


# --- what is declared -------------------------------------------------------------------------------------------------


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(metadata: Message) -> dict[str, set[str]]:
    """Extra -> packages, those of other extras of ours included; "": without an extra."""
    found: dict[str, set[str]] = {"": set(), **{extra: set() for extra in metadata.get_all("Provides-Extra", [])}}
    of_ours: dict[str, set[str]] = {}
    for line in metadata.get_all("Requires-Dist", []):
        match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        assert match
        if match[1] == "halfmq":
            assert extra
            of_ours.setdefault(extra[1], set()).update(match[2].split(","))
        else:
            found[extra[1] if extra else ""].add(normal(match[1]))
    while of_ours:  # an extra that names others, when those are complete
        extra, others = next((extra, others) for extra, others in of_ours.items() if not others & of_ours.keys())
        found[extra].update(*(found[one] for one in others))
        del of_ours[extra]
    return found


def imports() -> dict[str, set[str]]:
    """File below src -> packages that it imports, of others."""
    distributions = packages_distributions()
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
        roots = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - set(_OURS)
        found[str(path.relative_to(ROOT / "src"))] = {
            _OF_MANY.get(root) or normal(distributions.get(root, [root])[0]) for root in roots
        }
    return found


def extra_of(file: str) -> str:
    places = [place for place in EXTRA_OF if file == place or file.startswith(f"{place}/")]
    return EXTRA_OF[max(places, key=len)] if places else ""


#: What a package brings along, without which it does not exist.
_BROUGHT: Final = {"py4j": "pyspark"}


def test_every_import_is_of_a_package_that_is_installed_with_it(metadata: Message) -> None:
    available = required(metadata)
    assert available[""] == {"msgspec"}
    missing = {
        (file, package)
        for file, packages in imports().items()
        for package in packages
        if _BROUGHT.get(package, package) not in available[""] | available[extra_of(file)]
    }
    assert missing == OPTIONAL.keys()


def test_every_package_of_an_extra_is_imported_by_what_the_extra_is_for(metadata: Message) -> None:
    by_extra: dict[str, set[str]] = {}
    for file, packages in imports().items():
        by_extra.setdefault(extra_of(file), set()).update(packages)
    available = required(metadata)
    assert set(EXTRA_OF.values()) | {"compression", "demo"} == available.keys() - {""}
    own = {"pipeline": available["pipeline"] - available["server"] - available["sql"] - available["spark"]}
    unused = {
        (extra, package)
        for extra in available.keys() - {"", "demo"}
        for package in own.get(extra, available[extra])
        if package not in by_extra.get(extra, set())
    }
    assert unused == NOT_IMPORTED.keys()


def test_readme_lists_the_extras_that_there_are(metadata: Message) -> None:
    rows = {re.sub(r".*\[(\w+)\].*", r"\1", row["install"]) for row in table("README.md", "The command line", 1)}
    assert rows == (required(metadata).keys() - {"", "demo"}) | {"`halfmq`"}


def test_the_description_is_the_readme_and_the_version_that_of_the_code(metadata: Message) -> None:
    assert (metadata["Version"], metadata["Requires-Python"]) == (halfmq.__version__, ">=3.11")
    assert metadata["Description-Content-Type"] == "text/markdown"
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode() == (ROOT / "README.md").read_text()


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    tracked = run("git", "-C", ROOT, "ls-files", "src").split()
    inside = {name for name in names(wheel) if ".dist-info/" not in name}
    assert inside >= {name.removeprefix("src/") for name in tracked}
    assert {name.partition("/")[0] for name in inside} == set(_OURS)


def test_the_source_distribution_makes_the_same_wheel(tmp_path: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path / "sdist", cwd=ROOT)
    (sdist,) = (tmp_path / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    again = built(source, tmp_path / "wheel")
    assert again.name == wheel.name
    assert names(again) == names(wheel)
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        (described,) = [name for name in one.namelist() if name.endswith("METADATA")]
        assert one.read(described) == other.read(described)
    for name in (
        "README.md",
        "ARCHITECTURE.md",
        "Makefile",
        "requirements.lock",
        "docs/errors.md",
        "tests/run.py",
        "demo/__main__.py",
    ):
        assert (source / name).exists(), "a packager runs the tests from it"
