"""docs/transactions.md says what the code has: knobs, states and diagram are made from it."""

import inspect
import re

import typer
from tests.support.transactions_page import KNOBS, PAGE, diagram, fields_of_settings, made, state_table
from tests.support.transitions import Event, Stage

from halfmq.cli import serve, tx


def test_the_page_is_what_the_code_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert made(page) == page, "run: python -m tests.support.transactions_page"


def test_every_setting_of_transactions_is_a_knob_of_the_page() -> None:
    fields = fields_of_settings()
    assert len(fields) >= 9
    assert fields <= {knob.name for knob in KNOBS}


def test_every_knob_is_set_where_the_page_says() -> None:
    commands = {"serve": typer.main.get_command(serve.app), "limits": typer.main.get_command(tx.app).commands["limits"]}  # type: ignore[attr-defined]
    flags = {name: {flag for one in command.params for flag in one.opts} for name, command in commands.items()}
    looked_at = 0
    for knob in KNOBS:
        for command, flag in re.findall(r"`halfmq (?:tx )?(serve|limits)[^`]*? (--[a-z-]+)`", knob.where):
            assert flag in flags[command], knob
            looked_at += 1
    assert looked_at >= 11


def test_every_flag_about_checks_and_limits_is_on_the_page() -> None:
    said = " ".join(knob.where for knob in KNOBS)
    flags = [
        f"--{name.replace('_', '-')}"
        for name in inspect.signature(serve.serve).parameters
        if name.startswith(("check_", "checks_", "undecided"))
    ]
    assert len(flags) == 10
    for flag in flags:
        assert f"halfmq serve {flag}`" in said, flag


def test_table_and_diagram_name_every_stage_and_event() -> None:
    table, drawing = state_table(), diagram()
    assert all(event.value in table for event in Event)
    assert all(stage.value in table for stage in Stage)
    for stage in Stage:
        assert stage is Stage.ABSENT or f'"{stage.value}"' in drawing
