"""docs/outbox.md, as a reader follows it: the story of its ten minutes, the other targets, an operator's commands, and the fallback."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from halfmq import Client
from tests.documents.blocks import ADDRESS, blocks_of, in_test
from tests.documents.pages import Block, commands, output, same
from tests.documents.shell import shell
from tests.documents.test_programs import printed
from tests.support.served import Served
from tests.support.waiting import PATIENCE_S, wait_until

_HERE = "tests/documents/test_outbox_page.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    work = tmp_path_factory.mktemp("outbox")
    served = Served(work / "data", work / "broker.log", "--check-immunity-ms", "100")
    served.start()
    yield served
    served.stop()


def address(broker: Served) -> str:
    return f"127.0.0.1:{broker.name_port}"


def follow(block: Block, directory: Path) -> None:
    """Run its commands in the shell, which print what it shows."""
    # Of the whole list: what the first part of ``a || b`` writes says why it failed.
    said = "".join(shell(f"{{ {command}\n}} 2>&1", directory).stdout for command in commands(block))
    assert same(output(block), said), f"{block.place} shows\n{output(block)}\nand it is\n{said}"


def test_the_ten_minutes(tmp_path: Path, broker: Served) -> None:
    shop, place, publish, consume = blocks_of(f"{_HERE}::test_the_ten_minutes")
    (tmp_path / "shop.py").write_text(in_test(shop.text, address(broker), tmp_path))
    follow(place, tmp_path)
    with (
        Client(broker.url) as mq,
        mq.consumer("order-created", group="looks", start="earliest") as messages,
    ):
        assert messages.get(0) is None, "no broker was asked"
        follow(publish, tmp_path)
        message = messages.get(PATIENCE_S)
        assert message is not None
        assert message.json() == {"id": 1}
    (command,) = commands(consume)
    log = tmp_path / "log.txt"
    with log.open("wb") as said:
        consumer = subprocess.Popen(
            [sys.executable, *command.split()[1:]], cwd=tmp_path, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "\n" in log.read_text(), unless=consumer.poll)
        assert same(output(consume), log.read_text())
    finally:
        consumer.send_signal(signal.SIGINT)
        consumer.wait(PATIENCE_S)


#: What the block about other targets takes for granted.
_APP = """
from sqlalchemy import MetaData, create_engine
from halfmq import App
from halfmq.sql import Outbox
metadata = MetaData()
outbox, events = Outbox(metadata), Outbox(metadata, "mq_events")
app = App("rocketmq://127.0.0.1:1", sessions=create_engine("sqlite:///shop.db"))
"""


def test_the_other_targets(tmp_path: Path) -> None:
    """tests/outbox/test_examples.py publishes to them."""
    (block,) = blocks_of(f"{_HERE}::test_the_other_targets")
    said = printed(f"{_APP}{block.text}\nprint(*(relay.name for relay in app.relays()), sep='\\n')", tmp_path)
    assert said.splitlines() == [
        "relay of mq_outbox in sqlite:///shop.db to kafka 127.0.0.1:9092",
        "relay of mq_events in sqlite:///shop.db to rabbitmq 127.0.0.1:5672",
    ]


def test_an_operator_retries_and_skips_what_was_set_aside(tmp_path: Path) -> None:
    (block,) = blocks_of(f"{_HERE}::test_an_operator_retries_and_skips_what_was_set_aside")
    (tmp_path / "shop.py").write_text(f"{_APP}app.relay(outbox)\n")
    shell("halfmq db init shop:app", tmp_path)
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    program = "from shop import *\nwith app.sessions.begin() as c: print(outbox.send(c, 't', 'x', sharding_key=1))"
    message_id = printed(program, tmp_path).strip()
    after = {"retry": "W", "skip": "X"}
    for command in commands(block):
        with engine.begin() as connection:
            connection.execute(text("UPDATE mq_outbox SET delivery = 'A', reason = 'no such queue'"))
        assert message_id in shell("halfmq outbox list shop:app", tmp_path).stdout
        for name, value in {"MESSAGE_ID": message_id, "NAME": "ada", "TEXT": "'paid by hand'"}.items():
            command = command.replace(name, value)
        shell(command, tmp_path, typed=f"{message_id}\n")
        with engine.connect() as connection:
            found = connection.execute(text("SELECT delivery FROM mq_outbox")).scalar_one()
        assert found == after.pop(re.findall(r"outbox (\w+)", command)[0])
    assert after == {}
    engine.dispose()


#: What the fallback takes for granted. The address is that of a broker which is away, or not.
_FALLBACK = f"""
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from halfmq import Client
from halfmq.sql import MarkerTable, Outbox

class Base(DeclarativeBase): ...
class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)

engine = create_engine("sqlite:///shop.db")
Sessions = sessionmaker(engine)
markers, outbox = MarkerTable(Base.metadata), Outbox(Base.metadata)
Base.metadata.create_all(engine)
mq = Client("rocketmq://{ADDRESS}", group="shop")
mq.connect(wait=False)
mq.answer_checks(markers, Sessions)
"""


def test_the_fallback_says_which_way_the_messages_went(tmp_path: Path, broker: Served) -> None:
    (block,) = blocks_of(f"{_HERE}::test_the_fallback_says_which_way_the_messages_went")
    program = f"{_FALLBACK}{block.text}mq.close()\n"
    ways = re.findall(r'"([a-z ]+)"', block.text.partition("print(")[2])
    there = program.replace("wait=False", "wait=True")  # else the block may begin before the broker is found
    for at, text_of, way in zip((address(broker), "127.0.0.1:1"), (there, program), ways, strict=True):
        assert printed(in_test(text_of, at, tmp_path), tmp_path) == f"{way}\n"
