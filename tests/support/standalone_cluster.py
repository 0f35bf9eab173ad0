"""A standalone Spark cluster on loopback, from the jars of PySpark: a master and workers, each a process of its own.

``environment`` of the workers is not that of the driver, as on a cluster of several machines: executors inherit PATH, PYTHONPATH and
everything else from their worker. Also makes Python environments that have other packages than the one that runs the tests.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until


class StandaloneCluster:
    """``workers`` with ``cores`` each. Call ``start``, and always ``stop``."""

    def __init__(self, work: Path, environment: Mapping[str, str], *, workers: int = 2, cores: int = 1) -> None:
        self.work = work.resolve()
        self.environment = environment
        self.workers = workers
        self.cores = cores
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once the master has registered every worker."""
        self.work.mkdir(parents=True, exist_ok=True)
        place = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._run("master", "org.apache.spark.deploy.master.Master", [*place, "--port", str(self.port)])
        self._wait("master", "I have been elected leader", 1)
        for number in range(self.workers):
            name = f"worker-{number}"
            space = ["--cores", str(self.cores), "--memory", "1g", "--work-dir", str(self.work / name)]
            self._run(name, "org.apache.spark.deploy.worker.Worker", [*place, *space, self.url])
        self._wait("master", "Registering worker", self.workers)

    def stop(self) -> None:
        """SIGTERM to every process started here, by its id; SIGKILL to those that do not end, and to executors that are left."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        for number in processes_in(self.work):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def _run(self, name: str, main: str, options: list[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", **self.environment}
        command = [str(home / "bin" / "spark-class"), main, *options]
        with self._log(name).open("ab") as output:
            made = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=self.work, env=environment
            )
        self.processes.append(made)

    def _wait(self, name: str, text: str, times: int) -> None:
        def ended() -> str:
            codes = [process.returncode for process in self.processes if process.poll() is not None]
            return f"a process ended (exit codes: {codes}):\n{self._log(name).read_text()[-3000:]}" if codes else ""

        wait_until(
            lambda: self._log(name).read_text().count(text) >= times, f"{text!r} in {self._log(name)}", unless=ended
        )

    def _log(self, name: str) -> Path:
        return self.work / f"{name}.log"


def processes_in(directory: Path) -> list[int]:
    """Ids of the processes whose working directory is in ``directory``: a worker starts its executors there."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
    return found


def python_environment(directory: Path, *paths: Path) -> Path:
    """The Python of a new environment that imports from ``paths``, in this order, besides the standard library."""
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60)
    (packages,) = directory.glob("lib/python3*/site-packages")
    (packages / "paths.pth").write_text("".join(f"{path}\n" for path in paths))
    return directory / "bin" / "python"


def command(path: Path, python: Path) -> None:
    """An executable ``path`` that runs ``python``: the same name, on another machine another environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    path.chmod(0o755)


def clean_environment(*path_first: Path) -> dict[str, str]:
    """An environment without anything of this process that concerns Python or Spark. ``path_first``: directories to search first."""
    kept = {name: value for name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR") if (value := os.environ.get(name))}
    path = os.environ.get("PATH", os.defpath)
    return {**kept, "PATH": os.pathsep.join([*map(str, path_first), path])}
