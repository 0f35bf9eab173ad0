"""Who runs or compares each code block of README.md, the pages below examples and docs/*.md, or why nobody does: one row for every block,
in the order of the page.

Decision 0062. A test that is named here asks ``blocks_of`` for its blocks, so the table decides what it runs.
What the reader's program needs from its surroundings is replaced by ``in_test`` and nothing else: addresses, and absolute directories.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.documents.pages import Block, blocks

#: The address that the pages name: what `halfmq serve` listens on.
ADDRESS: Final = "127.0.0.1:9876"
#: Before the name of a language, in place of a first line: all blocks in it that no other row names.
EACH: Final = "```"


class By(NamedTuple):
    """``test`` runs it, or compares it with what was said: FILE::FUNCTION."""

    test: str


class Not(NamedTuple):
    why: str


#: (beginning of the block's first line, who), in the order of the page.
Rows = Sequence[tuple[str, By | Not]]

_PROGRAMS: Final = "tests/documents/test_programs.py"
_COMMANDS: Final = By("tests/documents/test_commands.py::test_the_commands_do_what_the_page_says")
_OUTBOX: Final = "tests/documents/test_outbox_page.py"
_RECOVERY: Final = "tests/documents/test_recovery_page.py"
_CONFIGURATION: Final = "tests/documents/test_configuration_page.py"
_TLS: Final = "tests/documents/test_tls_page.py"
_OPERATIONS: Final = By("tests/documents/test_operations_page.py::test_the_commands_print_what_the_page_shows")
_DJANGO: Final = By("tests/documents/test_django_page.py::test_a_project_does_what_the_page_says")
_PYTEST_DJANGO: Final = By("tests/django/test_pytest_django.py::test_the_fixtures_in_a_project")
_SERVICES: Final = By("tests/documents/test_services_page.py::test_the_programs_run_as_the_page_shows")
_CLOUDEVENTS: Final = By(
    "tests/documents/test_cloudevents_page.py::test_an_event_that_comes_in_both_modes_is_handled_once"
)
_IDEMPOTENT: Final = By(
    "tests/documents/test_idempotent_requests_page.py::test_a_request_that_is_repeated_gets_the_same_response"
)
_ASYNCAPI: Final = By("tests/documents/test_services_page.py::test_the_asyncapi_document_is_the_one_of_the_page")
_BACKUP: Final = By("tests/documents/test_backup_page.py::test_the_commands_say_what_the_page_says")
_BACKUP_COPIED: Final = By("tests/documents/test_backup_page.py::test_a_copy_and_a_drill")
_TIMER: Final = By("tests/documents/test_deployment.py::test_the_timer_and_the_line_of_cron_run_a_backup")
_USERS: Final = By("tests/documents/test_users_page.py::test_the_commands_run_one_after_the_other")
_SPARK: Final = By("tests/spark/test_documents.py::test_the_programs_run")
_JOBS: Final = By("tests/spark/test_documents.py::test_the_jobs_run")
_EVENTS: Final = By("tests/documents/test_quotations.py::test_what_the_pages_quote_is_what_the_code_says")
_MEASURED: Final = Not("a measurement of minutes to hours; its result depends on the machine")
_PIPELINES: Final = "tests/spark/test_pipelines.py"
_GUIDE: Final = By("tests/spark/test_guide.py::test_the_guide_prints_what_it_shows")
_CLUSTER: Final = Not("needs the machines of a cluster; tests/spark/test_clusters.py starts one on this machine")
_TUTORIALS: Final = By("tests/documents/test_tutorials.py::test_what_the_reader_does_and_sees")
_TCC_TUTORIAL: Final = By("tests/documents/test_tutorials.py::test_the_tutorial_of_tcc")
_SERVICE_TUTORIAL: Final = By("tests/documents/test_tutorials.py::test_the_reader_kills_a_service")
_COORDINATOR: Final = By("tests/documents/test_tutorials.py::test_the_tutorial_of_coordinators")
_OF_FASTSTREAM: Final = "packages/faststream-halfmq/tests/test_readme.py"
_FASTSTREAM: Final = By(f"{_OF_FASTSTREAM}::test_the_service_bills_what_was_committed_and_nothing_else")
_FASTSTREAM_TESTS: Final = By(f"{_OF_FASTSTREAM}::test_the_tests_pass_in_each_run")
_PROJECTS: Final = "tests/documents/test_example_projects.py"
_PROJECT: Final = By(f"{_PROJECTS}::test_its_tests_pass")
_TCC: Final = Not("the parts of examples/tcc.py, which tests/outbox/test_examples.py runs")
_DRAWING: Final = Not("a drawing of bytes and files, no program")

BLOCKS: Final[dict[str, Rows]] = {
    "README.md": (
        ("python3 -m venv venv", By(f"{_PROGRAMS}::test_the_first_program_runs_where_it_was_just_installed")),
        ("from sqlalchemy import create_engine", By(f"{_PROGRAMS}::test_the_first_program_runs_where_it_was_just_installed")),
        ("make demo", Not("the demo and the suites themselves; tests/demo runs the demo")),
        ("TransactionMQProducer producer", Not("Java; tests/compat runs such a producer of each version")),
        ("from halfmq.spark import builder", _SPARK),
        ('(orders.select("value", "key")', _SPARK),
        ("halfmq pipeline ingest", Not("a list of the jobs; docs/pipeline.md has them with their options, which are run")),
        ("halfmq serve --data DIR", _COMMANDS),
    ),
    "examples/README.md": (
        ("pip install", Not("as README.md, whose installation is run; tests/outbox/test_examples.py runs each program")),
    ),
    "packages/faststream-halfmq/README.md": (
        ("pip install", Not("as README.md, whose installation is run; test_package.py builds the wheel")),
        ("# shop.py", _FASTSTREAM),
        ("an order of -1 is refused", _FASTSTREAM),
        ("# conftest.py", _FASTSTREAM_TESTS),
        ("# test_shop.py", _FASTSTREAM_TESTS),
        ("# document.py", By(f"{_OF_FASTSTREAM}::test_the_document_has_the_topic")),
    ),
    "examples/django-service/README.md": (
        ("pip install", _PROJECT),
        ("python -m halfmq.testing.crashes", By(f"{_PROJECTS}::test_a_web_service_is_killed")),
    ),
    "examples/fastapi-service/README.md": (
        ("pip install", _PROJECT),
        ("python -m halfmq.testing.crashes", By(f"{_PROJECTS}::test_a_web_service_is_killed")),
    ),
    "examples/script/README.md": (
        ("pip install", _PROJECT),
        ("python -m halfmq.testing.crashes", By(f"{_PROJECTS}::test_a_script_is_killed")),
    ),
    "examples/worker/README.md": (
        ("pip install", _PROJECT),
        ("python -m halfmq.testing.crashes", By(f"{_PROJECTS}::test_a_worker_is_killed")),
    ),
    "docs/backup.md": (
        ("halfmq backup backup", _BACKUP),
        ("backup of store a82", _BACKUP),
        ("backup of store a82", _BACKUP),
        ("halfmq store verify backup", _BACKUP),
        ("backup of store a82", _BACKUP),
        ("install -m 644 deploy/halfmq-backup", _TIMER),
        ("*/5 * * * * halfmq", _TIMER),
        ("mkdir -p elsewhere", _BACKUP_COPIED),
        ("halfmq restore backup drill", _BACKUP_COPIED),
        ("log 0 to 292696", _BACKUP_COPIED),
        ("halfmq restore backup restored", _BACKUP),
        ("restored is store", _BACKUP),
        ("halfmq restore backup earlier", _BACKUP),
        ("earlier is store", _BACKUP),
        ("AGE   GROUP", _BACKUP),
    ),
    "docs/check-history.md": (
        ("$ halfmq check-history history/", By(f"{_PROGRAMS}::test_a_history_is_recorded_and_checked")),
        ("from halfmq.testing.history import Recorder", By(f"{_PROGRAMS}::test_a_history_is_recorded_and_checked")),
        ('{"e":"began"', By(f"{_PROGRAMS}::test_the_example_of_a_history_has_the_violation_that_is_shown")),
        ("phantom: shop/T1", By(f"{_PROGRAMS}::test_the_example_of_a_history_has_the_violation_that_is_shown")),
    ),
    "docs/compensation.md": (
        ("@app.consumer([PLACED, FAILED]", By("tests/systems/test_compensation.py::test_the_page_shows_the_program")),
    ),
    "docs/configuration.md": (
        ("# halfmq.toml", By(f"{_CONFIGURATION}::test_the_file_and_the_environment_give_what_is_shown")),
        ("$ HALFMQ_RETENTION_HOURS=24 halfmq config show", By(f"{_CONFIGURATION}::test_the_file_and_the_environment_give_what_is_shown")),
        ("$ halfmq config get", By(f"{_CONFIGURATION}::test_a_running_broker_says_what_is_shown")),
        ("$ halfmq config set", By(f"{_CONFIGURATION}::test_a_changed_setting_says_what_is_shown")),
        ("INFO halfmq.broker: setting", By(f"{_CONFIGURATION}::test_a_changed_setting_says_what_is_shown")),
        ("WARNING halfmq.broker: setting", By(f"{_CONFIGURATION}::test_a_changed_setting_says_what_is_shown")),
    ),
    "docs/coordinator.md": (
        ('coordinator = mq.coordinator("transfers")', By(f"{_PROGRAMS}::test_the_coordinator_page_is_one_program")),
    ),
    "docs/database.md": (
        ("metadata = MetaData()", By(f"{_PROGRAMS}::test_the_database_page_is_one_program")),
        ("engine = create_async_engine", By(f"{_PROGRAMS}::test_the_web_service_of_the_database_page_serves")),
        ("while markers.prune", By(f"{_PROGRAMS}::test_the_database_page_is_one_program")),
        ("inbox = Inbox(metadata)", By(f"{_PROGRAMS}::test_the_database_page_is_one_program")),
    ),
    "docs/metrics.md": (
        ("halfmq serve", Not("runs until it is stopped; tests/scenarios/test_prometheus.py starts it, on free ports")),
        ("halfmq relay shop:app --http-port", Not("runs until it is stopped; tests/unit/cli/test_relay.py starts it, on a free port")),
        ("halfmq_relay_published_messages_total{", Not("series as a relay gave them, with other names; tests/unit/relay/test_metrics.py reads them")),
        ('{"time":', Not("a line as it was written; tests/unit/broker/test_log_output.py reads such lines")),
    ),
    "docs/deployment.md": (
        ("python3 -m venv /opt/halfmq", Not("needs root and systemd; tests/documents/test_deployment.py checks the unit and its settings")),
        ("podman build", Not("needs a builder of images; tests/documents/test_deployment.py runs the steps of the Containerfile")),
        ("halfmq --install-completion", Not("writes into the start file of the reader's shell; tests/unit/cli/test_completion.py completes lines")),
    ),
    "docs/outbox.md": (
        ("import asyncio", By(f"{_OUTBOX}::test_the_ten_minutes")),
        ("$ halfmq db init shop:app", By(f"{_OUTBOX}::test_the_ten_minutes")),
        ("$ halfmq relay shop:app --once", By(f"{_OUTBOX}::test_the_ten_minutes")),
        ("$ python shop.py", By(f"{_OUTBOX}::test_the_ten_minutes")),
        ("from halfmq.relay.kafka", By(f"{_OUTBOX}::test_the_other_targets")),
        ("halfmq outbox retry", By(f"{_OUTBOX}::test_an_operator_retries_and_skips_what_was_set_aside")),
        ("with Sessions() as session", By(f"{_OUTBOX}::test_the_fallback_says_which_way_the_messages_went")),
    ),
    "docs/performance.md": ((EACH, _MEASURED),),
    "docs/pipeline.md": (
        ("halfmq pipeline ingest", _JOBS),
        ("halfmq pipeline transactions", _JOBS),
        ("halfmq pipeline reconcile \\", _JOBS),
        ("table            1,004", _JOBS),
        ("halfmq pipeline archive", _JOBS),
        ("halfmq pipeline replay", _JOBS),
        ("halfmq pipeline report", _JOBS),
        ("[spark]", _JOBS),
        ("halfmq pipeline reconcile --config", _JOBS),
        ("export PYSPARK_PYTHON", _CLUSTER),
    ),
    "docs/promises.md": (("halfmq group hold", _COMMANDS),),
    "docs/recovery.md": (
        ("store DIR (durability fsync)", By(f"{_RECOVERY}::test_a_kill_a_torn_tail_and_damage_say_what_the_page_shows")),
        ("halfmq: the log in DIR/shard-0/log is damaged", By(f"{_RECOVERY}::test_a_kill_a_torn_tail_and_damage_say_what_the_page_shows")),
        ("store DIR (durability fsync): case I", By(f"{_RECOVERY}::test_a_kill_a_torn_tail_and_damage_say_what_the_page_shows")),
        ("halfmq: the log in DIR begins", By(f"{_RECOVERY}::test_a_log_whose_beginning_is_gone_is_refused_as_the_page_shows")),
        ("unconfirmed clock jump", _EVENTS),
        ("free space is below", _EVENTS),
        ("fdatasync of the log", _EVENTS),
        ("halfmq: the log in DIR/shard-0/log accepts", _EVENTS),
        ("log 0 to", By(f"{_RECOVERY}::test_verify_and_dump_print_what_the_page_shows")),
        ("log 0 to", By(f"{_RECOVERY}::test_verify_and_dump_print_what_the_page_shows")),
        ("$ halfmq store dump DIR", By(f"{_RECOVERY}::test_verify_and_dump_print_what_the_page_shows")),
    ),
    "docs/simulation.md": (
        ("python -m tests.simulation --seeds", Not("runs of minutes and hours; the part 'new histories' of a suite runs the command")),
        ("python -c 'from tests.simulation.chunks", Not("F and N stand for a chunk of the record, which is hours of work")),
    ),
    "docs/soak.md": ((EACH, Not("runs of minutes and hours; tests/soak runs the same programs with fewer kills")),),
    "docs/request-reply.md": (
        ("import asyncio", By(f"{_PROGRAMS}::test_the_page_of_requests_is_one_program")),
    ),
    "docs/spark-options.md": (
        ('{"v":2,"brokers"', Not("the form of an offset, with parts left out; tests/unit/spark has whole ones")),
        ('tx = spark.read.format("halfmq")', _SPARK),
        ("after = tx.agg", _SPARK),
        ("# Each row once", _SPARK),
        ("def write(frame, batch)", _SPARK),
        ('(orders.selectExpr("value", "key", "tag")', _SPARK),
    ),
    "docs/spark-pipelines.md": (
        ("pip install", Not("as README.md, whose installation is run; the environment of the tests has both")),
        ("# copy_orders.py", By(f"{_PIPELINES}::test_stream_over_spark_connect")),
        ("# spark-pipeline.yml", By(f"{_PIPELINES}::test_pipeline_with_a_table_and_a_sink")),
        ("# definitions/orders.py", By(f"{_PIPELINES}::test_pipeline_with_a_table_and_a_sink")),
        ("spark-pipelines --conf", By(f"{_PIPELINES}::test_pipeline_with_a_table_and_a_sink")),
    ),
    "docs/spark.md": (
        ("python3 -m venv venv", Not("as README.md, whose installation is run; with Spark 400 MB are loaded")),
        ("halfmq group holds", _COMMANDS),
        ("python3 -m venv /opt/halfmq", _CLUSTER),
        ("export PYSPARK_PYTHON", _CLUSTER),
        (f"{EACH}python", _GUIDE),
        (f"{EACH}text", _GUIDE),
    ),
    "docs/storage-format.md": ((EACH, _DRAWING),),
    "docs/tcc.md": (
        ("with mq.tcc(session", _TCC),
        ("def reserve(", _TCC),
        ('@api.post("/try")', By(f"{_PROGRAMS}::test_a_try_over_http")),
        ('    reply = t.call("stock-try"', Not("as the program before it; tests/systems/test_tcc.py runs tries over messages")),
        ("from halfmq import Branch, Client", By(f"{_PROGRAMS}::test_cancels_of_a_lost_broker_are_taken_out")),
    ),
    "docs/testing-your-service.md": (
        ("pip install", Not("as README.md, whose installation is run; the test of the recipes installs the same")),
        (f"{EACH}python", By("tests/documents/test_testing_your_service.py::test_the_recipes_pass_where_the_wheel_is_installed")),
    ),
    "docs/tls-java.md": (
        ("halfmq serve --data DATA", Not("a program of the reader; tests/compat/test_tls.py starts others, and mqadmin, with these options")),
        ("tls.test.mode.enable=false", By("tests/compat/test_tls.py::test_the_stock_client_does_over_tls_what_it_does_without")),
        ("tls.server.certPath=server.pem", By("tests/compat/test_tls.py::stock")),
    ),
    "docs/tls.md": (
        ("openssl req -x509", By(f"{_TLS}::test_the_commands_and_the_program_run")),
        ("rocketmqs://HOST", Not("the form of a URL; tests/unit/model/test_address.py parses each")),
        ("import ssl", By(f"{_TLS}::test_the_commands_and_the_program_run")),
        ("openssl req -newkey", By(f"{_TLS}::test_the_commands_and_the_program_run")),
        ("halfmq serve", By(f"{_TLS}::test_the_commands_and_the_program_run")),
        ("rocketmq://USER@HOST", Not("the form of a URL; tests/compat/test_acl.py uses one")),
    ),
    "docs/django.md": (
        ("pip install", Not("as README.md, whose installation is run; the environment of the tests has both")),
        ("INSTALLED_APPS", _DJANGO),
        ("from halfmq import django as mq", _DJANGO),
        ("with transaction.atomic():", _DJANGO),
        ("pip install", Not("as README.md, whose installation is run; the environment of the tests has both")),
        ("python manage.py halfmq_relay", _DJANGO),
        ("# consumers.py of an application", _DJANGO),
        ("python manage.py halfmq_worker", _DJANGO),
        ("$ python manage.py halfmq_prune", _DJANGO),
        ("# conftest.py", _PYTEST_DJANGO),
        ("# test_orders.py", _PYTEST_DJANGO),
    ),
    "docs/tracing.md": (
        ("pip install", Not("as README.md, whose installation is run; the environment of the tests has both")),
        ("import asyncio", By(f"{_PROGRAMS}::test_the_page_of_traces_is_one_program")),
        ("POST /orders", By(f"{_PROGRAMS}::test_the_page_of_traces_is_one_program")),
    ),
    "docs/transactions.md": (
        ("stateDiagram-v2", By("tests/unit/core/transaction/test_transactions_page.py::test_the_page_is_what_the_code_says")),
        ("halfmq tx limits orders --check-limit 15", _COMMANDS),
        ("halfmq tx list", _COMMANDS),
        ("halfmq tx damaged", _COMMANDS),
    ),
    "docs/tutorials.md": (
        ("$ python examples/tcc.py", _TCC_TUTORIAL),
        ("import sqlite3", _TCC_TUTORIAL),
        ("$ python left.py", _TCC_TUTORIAL),
        ("$ python die.py after stock", _TCC_TUTORIAL),
        ("$ python examples/tcc.py", _TCC_TUTORIAL),
        ("$ python die.py before orders", _TCC_TUTORIAL),
        ("$ python -m demo.postgres_server", _COORDINATOR),
        ("$ python examples/coordinator.py", _COORDINATOR),
        ("import os, runpy", _COORDINATOR),
        ("import os", _COORDINATOR),
        ("$ python die_deciding.py before", _COORDINATOR),
        ("$ python examples/coordinator.py", _COORDINATOR),
        ("$ python die_deciding.py after", _COORDINATOR),
        ("import json, sqlite3", _SERVICE_TUTORIAL),
        ("$ uvicorn --factory", _SERVICE_TUTORIAL),
        ("$ python -m halfmq.testing.crashes", _SERVICE_TUTORIAL),
        ("$ curl -sf --json", _SERVICE_TUTORIAL),
        ("$ uvicorn --factory", _SERVICE_TUTORIAL),
        (EACH, _TUTORIALS),
        (f"{EACH}python", _TUTORIALS),
    ),
    "docs/services.md": (
        ("# shop.py", _SERVICES),
        ("export HALFMQ_URL", _SERVICES),
        ("halfmq worker", _SERVICES),
        ("broker 127.0.0.1:10911: consumer group", Not("a line of a log; tests/unit/broker/remoting/test_members.py has its text from a broker")),
        (
            "a message of topic stock was redelivered",
            Not("a line of a log; tests/scenarios/test_group_with_different_topics.py has it from a client"),
        ),
        ("halfmq send orders", _SERVICES),
        ("halfmq dead list", _SERVICES),
        ("HALFMQ_URL=rocketmq://mq.example", _ASYNCAPI),
        ('asyncapi: "3.0.0"', _ASYNCAPI),
        ("# billing.py", _ASYNCAPI),
        ("# api.py", _SERVICES),
        ("# pages.py", _SERVICES),
        ("uvicorn api:api", _SERVICES),
        ("# web.py", _SERVICES),
        ("gunicorn --preload", _SERVICES),
        ("# wsgi.py", _SERVICES),
        ("gunicorn --preload", _SERVICES),
    ),
    "docs/cloudevents.md": (
        ("# events.py", _CLOUDEVENTS),
        ("export HALFMQ_URL", _CLOUDEVENTS),
        ("halfmq worker", _CLOUDEVENTS),
        ("example.shop.order.created Order", _CLOUDEVENTS),
    ),
    "docs/idempotent-requests.md": (
        ("# orders.py", _IDEMPOTENT),
        ("export HALFMQ_URL", _IDEMPOTENT),
        ("uvicorn orders:api", _IDEMPOTENT),
        ("curl", _IDEMPOTENT),
    ),
    "docs/operations.md": ((f"{EACH}sh", _OPERATIONS),),
    "docs/users.md": (
        ("halfmq serve", _USERS),
        ("halfmq user set", _USERS),
        ("rocketmq://USER@HOST", Not("the form of a URL; tests/scenarios/test_users.py uses such URLs")),
        ("halfmq user rotate", _USERS),
        ("halfmq user remove", _USERS),
        ("halfmq user set alice", _USERS),
    ),
}  # fmt: skip


def matched(shown: Sequence[Block], rows: Rows) -> tuple[list[By | Not | None], list[str]]:
    """(for each block its row, or None; rows without a block)."""
    named = [row for row in rows if not row[0].startswith(EACH)]
    of_language = {first.removeprefix(EACH): one for first, one in rows if first.startswith(EACH)}
    found: list[By | Not | None] = []
    for block in shown:
        if named and block.first.startswith(named[0][0]):
            found.append(named.pop(0)[1])
        else:
            found.append(of_language.get(block.language))
    return found, [first for first, _ in named]


def blocks_of(test: str) -> list[Block]:
    """The blocks that the table gives to a test, FILE::FUNCTION, page by page."""
    found = []
    for page, rows in BLOCKS.items():
        shown = blocks(page)
        found += [block for block, row in zip(shown, matched(shown, rows)[0], strict=True) if row == By(test)]
    assert found, f"no block names {test}"
    return found


def in_test(text: str, address: str, directory: Path) -> str:
    """The reader's program, with the address of the test's broker, and absolute directories below one of the test's."""
    text = re.sub(r"""(?<=[ "'])(?=/(data|archive|var/lib|var/tables|tmp)/)""", lambda _: str(directory), text)
    return text.replace(ADDRESS, address)
