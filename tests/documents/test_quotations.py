"""Messages and log lines that the pages quote are worded as in the code, and quotations of anything else are listed."""

import re
from typing import Final

import pytest

from halfmq.store.recovery_cases import CASES, Act
from tests.documents.blocks import blocks_of
from tests.documents.pages import PAGES, quotes, table
from tests.documents.source_texts import is_said, source_texts

_HERE: Final = "tests/documents/test_quotations.py::test_what_the_pages_quote_is_what_the_code_says"
#: Quotations of three words and more that are no message of ours, by whose they are.
_OTHERS: Final = {
    "a || b": "an expression of tags",
    "await mq.answer_check(check, outcome)": "Python",
    "await markers.prune_async(session, ...)": "Python",
    "from halfmq import SendTimeout": "Python",
    "from halfmq.spark import HalfmqDataSource": "Python",
    "halfmq.spark.jobs.ingest.run(Settings(...), SparkSettings(), print)": "Python",
    "inbox.claim(session, message, group=...)": "Python",
    "Inbox(metadata, key=lambda message: message.keys[0])": "Python",
    "inbox.once(session, message, group=...)": "Python",
    'await session.run_sync(lambda s: inbox.claim(s, message.raw_message, group="billing"))': "Python",
    "HalfmqResponse(body, tag=..., key=...)": "Python",
    "tx = await markers.join_async(mq, session)": "Python",
    "INSERT OR ROLLBACK": "SQL",
    "Placed | Cancelled": "Python",
    "UPDATE ... WHERE": "SQL",
    "CREATE OR REPLACE": "SQL",
    "CREATE OR REPLACE TEMPORARY VIEW": "SQL",
    "CREATE TABLE ... USING halfmq": "SQL",
    "tx_id LIKE '#%'": "SQL",
    "synchronous_commit = on": "PostgreSQL",
    "database is locked": "SQLite",
    "manage.py check --database default --fail-level WARNING": "Django",
    "innodb_flush_log_at_trx_commit = 1": "MariaDB",
    'new TransactionMQProducer("shop", List.of("orders"))': "Java",
    "System.nanoTime() / 1000": "Java",
    "-Dtls.server.mode=enforcing -Dtls.enable=true -Dtls.config.file=FILE": "options of Java",
    "BEGIN PRIVATE KEY": "PEM",
    "BEGIN EC PRIVATE KEY": "PEM",
    "BEGIN RSA PRIVATE KEY": "PEM",
    "check_hostname = False": "Python",
    '"paid || open"': "an expression of tags",
    "No module named 'halfmq'": "Python's own",
    "Expected `int`, got `str` - at `$.basket_id` ": "msgspec's",
    "BatchScan halfmq[...] (Python)": "Spark's",
    "unable to get local issuer certificate": "OpenSSL's",
    "certificate verify failed": "OpenSSL's",
    "certificate has expired": "OpenSSL's",
    "peer did not return a certificate": "OpenSSL's",
    "new AclClientRPCHook(new SessionCredentials(USER, SECRET))": "Java",
    "async with app.run()": "Python",
    "asyncio_mode = auto": "pytest-asyncio's",
    "asyncio_default_fixture_loop_scope = function": "pytest-asyncio's",
    "await asyncio.to_thread(halfmq_broker.advance, 60)": "Python",
    "def f(event: Type)": "Python",
    "def f(message, session)": "Python",
    "async def f(message, session)": "Python",
    "def f(message, session, tx)": "Python",
    "def f(tx) -> Outcome": "Python",
    "def f(tx, ...)": "Python",
    "def f(event: Type, message: Message)": "Python",
    "def bill(order: Order, session, message: Message)": "Python",
    "CardExpired: the card of order 2": "of the page's own program",
    "NotDecoded: its body into Order: ValidationError: Expected `int`, got `str` - at `$.id` ": "ours, and msgspec's",
    "manage.py migrate --database ALIAS": "Django's",
    "manage.py check --database default": "Django's",
    "find DIR/backup.json -mmin +15": "of the operating system",
    "rclone copy backup/log REMOTE:orders/log": "rclone's",
    "rclone copyto backup/backup.json REMOTE:orders/backup.json": "rclone's",
    "rclone sync backup/log REMOTE:orders/log": "rclone's",
    "base64(key) AS key": "Spark SQL",
    "unbase64(cast(key AS string)) AS key": "Spark SQL",
    "coalesce(value, cast('null' AS binary)) AS value": "Spark SQL",
    "nullif(value, cast('null' AS binary)) AS value": "Spark SQL",
    "transform(headers, h -> struct(h.key, base64(h.value) AS value)) AS headers": "Spark SQL",
    "transform(headers, h -> struct(h.key, unbase64(cast(h.value AS string)) AS value)) AS headers": "Spark SQL",
}
#: Beginnings of commands.
_COMMANDS: Final = ("halfmq ", "--", "make ", "python ", "pip ", "mqadmin ", "openssl ", "ulimit ")


def test_what_the_pages_quote_is_what_the_code_says() -> None:
    found = [
        (f"{page}:{quote.line}", quote.text)
        for page in PAGES
        for quote in quotes(page)
        if len(quote.text.split()) >= 3 and quote.text not in _OTHERS and not quote.text.startswith(_COMMANDS)
    ]
    assert len(found) > 50
    assert [(place, text) for place, text in found if not is_said(text)] == [], (
        "word it as the code does, or list whose it is"
    )
    said = {quote.text for page in PAGES for quote in quotes(page)}
    assert _OTHERS.keys() <= said, "listed, and on no page"
    for block in blocks_of(_HERE):
        whole_or_lines = is_said(block.text) or all(is_said(line) for line in block.text.splitlines())
        assert whole_or_lines, f"{block.place}: {block.text}"


def test_every_cell_about_error_lines_quotes_one() -> None:
    rows = table("docs/recovery.md", "Error lines")
    assert len(rows) > 25
    for row in rows:
        assert re.match(r"`[^`]+`|the same with `", row["the line says"]), row


def test_the_cases_of_a_start_are_those_of_the_code_in_its_words() -> None:
    rows = table("docs/recovery.md", "The cases")
    said = [(row["case"], row["what the line says"], "**refuses**" in row["what the broker does"]) for row in rows]
    assert said == [(case.letter, case.says, case.act is Act.REFUSE) for case in CASES]


@pytest.mark.parametrize(
    ("quotation", "said"),
    [
        ("the store in DIR is in use by another process (pid N)", True),
        ("the store in DIR is used by another process (pid N)", False),
        ("was removed under a running broker", True),
        ("was removed beneath a running broker", False),
        ("this is store ..., the query has read store ...", True),
        ("this is store ..., the query read store ...", False),
        ("fdatasync of the log ...: the disk stalls", True),
        ("fdatasync of the log ... the disc stalls", False),
        ("FILE cannot be read at log offset X: Input/output error", True),
        ("FILE cannot be read at log offset X: Output error", False),
        ("halfmq: the log in DIR accepts no more writes: ERROR (what the failed write or sync left on the disk is not known; "
         "check the disk, then restart to recover)", True),
        ("halfmq: the log in DIR accepts no more writes: ERROR (check the disc)", False),
    ],
)  # fmt: skip
def test_another_wording_is_noticed(quotation: str, said: bool) -> None:
    assert len(source_texts()) > 3_000
    assert is_said(quotation) == said
