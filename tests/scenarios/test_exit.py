"""A program ends, whatever it calls while the interpreter exits: a call that cannot be answered any more is refused."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.calls_at_exit import CALLS, LOCAL
from tests.support.served import Served

from halfmq.client import sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
#: Of a program that needs two. It only bounds a red test.
DEADLINE_S = 60
REFUSED = "UsageError: the interpreter is exiting"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    broker = Served(directory / "data", directory / "broker.log")
    broker.start()
    try:
        yield broker.url
    finally:
        broker.stop()


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output and error output of a program; AssertionError with what it printed if it does not end."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"it hangs; it has printed:\n{(error.stdout or b'').decode()}") from None
    return done.returncode, done.stdout, done.stderr


def test_the_table_has_every_method_of_every_public_class() -> None:
    public = {
        one
        for name, one in vars(sync).items()
        if inspect.isclass(one) and one.__module__ == sync.__name__ and not name.startswith("_")
    }
    assert public <= CALLS.keys()
    for owner, calls in CALLS.items():
        ours = [base for base in owner.__mro__ if base.__module__.startswith("halfmq")]
        methods = {
            name
            for base in ours
            for name, member in vars(base).items()
            if inspect.isroutine(getattr(owner, name)) and not name.startswith("_") and not isinstance(member, property)
        }
        special = {
            name for base in ours for name in ("__enter__", "__exit__", "__iter__", "__next__") if name in vars(base)
        }
        assert calls.keys() == methods | special, owner
        assert calls.keys() >= {name for cls, name in LOCAL if cls is owner}


@pytest.mark.parametrize("way", ["del", "generator"])
def test_calls_while_the_interpreter_is_finalized_are_refused(url: str, way: str) -> None:
    status, printed, errors = run("-m", "tests.support.calls_at_exit", url, way)
    assert (status, printed.splitlines()[0], printed.splitlines()[-1]) == (0, "finalizing: True", "done"), errors
    results = dict(line.split(" -> ", 1) for line in printed.splitlines() if " -> " in line)
    for owner, calls in CALLS.items():
        for name in calls:
            result = results[f"{owner.__name__}.{name}"]
            refused = result.startswith(REFUSED)
            assert refused or ((owner, name) in LOCAL and "Error" not in result), (owner, name, result)


def test_calls_from_atexit_are_answered(url: str) -> None:
    status, printed, errors = run("-m", "tests.support.calls_at_exit", url, "atexit")
    assert (status, printed.splitlines()[0], printed.splitlines()[-1]) == (0, "finalizing: False", "done"), errors
    assert REFUSED not in printed
    assert "Client.send -> Receipt" in printed


def test_first_call_from_atexit_is_answered(url: str) -> None:
    _, printed, errors = run("-m", "tests.support.calls_at_exit", url, "first call in atexit")
    assert printed.splitlines() == ["finalizing: False", "sent", "done"], errors


def test_first_call_while_the_interpreter_is_finalized_is_refused(url: str) -> None:
    _, printed, errors = run("-m", "tests.support.calls_at_exit", url, "first call in del")
    first, result, done = printed.splitlines()
    assert (first, done) == ("finalizing: True", "done"), errors
    assert result.startswith(REFUSED)


OPEN_GENERATOR = """
import sys
from halfmq import Client

def client():
    with Client(sys.argv[1], group="g") as mq:
        yield mq

opened = client()
mq = next(opened)
mq.send("t", b"x")
print("end")
"""

RAISES = """
import sys
from halfmq import Client

def stream():
    with Client(sys.argv[1], group="g") as mq, mq.consumer("t", group="readers") as messages:
        for message in messages:
            yield message

with Client(sys.argv[1]) as mq:
    mq.send("t", b"x")

def program():
    messages = stream()
    for m in messages:
        print("end")
        raise ValueError("of the program")  # its traceback keeps the generator open

program()
"""

DELETED = """
import sys
from halfmq import Client

class Holder:
    def __init__(self):
        self.mq = Client(sys.argv[1], group="g")
        self.mq.connect()
    def __del__(self):
        self.mq.close()

holder = Holder()
print("end")
"""


@pytest.mark.parametrize(("program", "status"), [(OPEN_GENERATOR, 0), (RAISES, 1), (DELETED, 0)])
def test_program_that_leaves_a_client_open_ends_and_says_what_was_left(url: str, program: str, status: int) -> None:
    code, printed, errors = run("-c", program, url)
    assert (code, printed) == (status, "end\n"), errors
    assert "the interpreter is exiting" in errors
