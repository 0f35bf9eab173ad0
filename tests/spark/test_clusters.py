"""Reads on clusters: executors in processes of their own, whose Python is not that of the driver.

The commands ``python-same``, ``python-other`` and ``python-without`` are on the PATH of the driver and of the workers. For the driver each
is an environment with halfmq; for the workers one has the same halfmq in another directory, one has another version, and one has none.
"""

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.served import Served
from tests.support.spark_queries import CONNECT_BACK, again
from tests.support.standalone_cluster import (
    StandaloneCluster,
    clean_environment,
    command,
    processes_in,
    python_environment,
)

import halfmq
from halfmq.client.sync import Client
from halfmq.errors import MissingDependency
from halfmq.spark.jobs.stream import JobFailed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]

BODIES = sorted(str(number) for number in range(200))
OTHER = "0.0.9"


class Pythons:
    """The environments and their commands, in ``work``."""

    def __init__(self, work: Path) -> None:
        import pyspark

        packages = Path(pyspark.__file__).parents[1]
        if (packages / "halfmq").exists():
            pytest.skip("halfmq is installed beside PySpark: no environment has one without the other")
        ours = work / "ours"
        for name in ("halfmq", "pyspark_halfmq"):
            source = Path(halfmq.__file__).parents[1] / name
            shutil.copytree(source, ours / name, ignore=shutil.ignore_patterns("__pycache__"))
        other = work / "other"
        shutil.copytree(ours, other)
        init = other / "halfmq" / "__init__.py"
        text = init.read_text()
        init.write_text(text.replace(f'__version__ = "{halfmq.__version__}"', f'__version__ = "{OTHER}"'))
        assert init.read_text() != text
        self.zip = work / "halfmq.zip"
        with zipfile.ZipFile(self.zip, "w") as archive:
            for file in ours.rglob("*.py"):
                archive.write(file, file.relative_to(ours))
        self.driver = python_environment(work / "driver", packages, Path(halfmq.__file__).parents[1])
        self.of_driver = work / "driver-bin"
        self.of_workers = work / "worker-bin"
        for name, paths in {"same": [ours], "other": [other], "without": []}.items():
            command(self.of_driver / f"python-{name}", self.driver)
            command(self.of_workers / f"python-{name}", python_environment(work / name, packages, *paths))


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Pythons:
    from halfmq.spark.java import find_java

    try:
        os.environ["JAVA_HOME"] = str(find_java().home)
    except MissingDependency as error:
        pytest.skip(str(error))
    return Pythons(tmp_path_factory.mktemp("pythons"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, str]]]:
    """Options that read the same messages over the network and from files."""
    work = tmp_path_factory.mktemp("broker")
    served = Served(work / "data", work / "broker.log", "--segment-bytes", str(1 << 20))
    served.start()
    url = served.url
    with Client(url, group="service") as mq:
        for body in BODIES:
            mq.send("orders", body)
    yield [{"url": url}, {"path": str(work / "data")}]
    served.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, pythons: Pythons) -> Iterator[StandaloneCluster]:
    made = StandaloneCluster(tmp_path_factory.mktemp("cluster"), clean_environment(pythons.of_workers))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        assert not processes_in(made.work)


def query(
    pythons: Pythons,
    master: str,
    python: str,
    sources: list[dict[str, str]],
    *,
    register: bool = True,
    py_file: str = "",
) -> Any:
    """For each source [batch, stream]: bodies or the text of an error. ``python``: PYSPARK_PYTHON of the driver."""
    given = json.dumps({"register": register, "py_file": py_file, "sources": sources})
    program = Path(__file__).with_name("cluster_query.py")

    def attempt() -> str:
        ran = subprocess.run(
            [pythons.driver, program, master, given],
            env={**clean_environment(pythons.of_driver), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-3000:]
        if CONNECT_BACK in ran.stdout:
            raise JobFailed(ran.stdout)
        return ran.stdout

    return json.loads(again(attempt).splitlines()[-1])


def test_local_cluster(pythons: Pythons, sources: list[dict[str, str]]) -> None:
    found = query(pythons, "local-cluster[1,1,512]", str(pythons.driver), sources[:1])
    assert found == [[BODIES, BODIES]]


@pytest.mark.parametrize("register", [True, False], ids=["registered", "discovered"])
def test_executors_with_an_environment_of_their_own(
    cluster: StandaloneCluster, pythons: Pythons, sources: list[dict[str, str]], register: bool
) -> None:
    found = query(pythons, cluster.url, "python-same", sources, register=register)
    assert found == [[BODIES, BODIES], [BODIES, BODIES]]


@pytest.mark.parametrize("register", [True, False], ids=["registered", "discovered"])
def test_another_version_on_executors_is_named(
    cluster: StandaloneCluster, pythons: Pythons, sources: list[dict[str, str]], register: bool
) -> None:
    ((batch, stream),) = query(pythons, cluster.url, "python-other", sources[:1], register=register)
    said = rf"imports halfmq {OTHER} with \S*/other/bin/python on \S+; the read was planned with halfmq {halfmq.__version__}"
    assert re.search(said, str(batch))
    assert re.search(said, str(stream))


def test_executors_without_halfmq_need_it_from_the_driver(
    cluster: StandaloneCluster, pythons: Pythons, sources: list[dict[str, str]]
) -> None:
    """The zip file of ``--py-files`` reaches executors; on the driver the planner needs an installed halfmq, which it has here."""
    ((batch, stream),) = query(pythons, cluster.url, "python-without", sources[:1])
    assert "No module named 'halfmq'" in str(batch)
    assert "No module named 'halfmq'" in str(stream)
    assert query(pythons, cluster.url, "python-without", sources, py_file=str(pythons.zip)) == [[BODIES, BODIES]] * 2
