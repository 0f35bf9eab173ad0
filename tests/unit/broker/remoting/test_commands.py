"""The table of commands: every code that is served has one row, and what the row says of its fields is so."""

from pathlib import Path

import pytest
from tests.support.in_process import serving
from tests.support.worst_requests import REQUESTS

from halfmq.broker.remoting.commands import COMMANDS, fields_of
from halfmq.broker.services.access import Action, Resource
from halfmq.wire.remoting import codes
from halfmq.wire.remoting.codes import RequestCode

OURS = {name: code for name, code in vars(codes).items() if name.startswith("HMQ_")}
#: Sent by the broker, or refused by name (``RequestCode``).
NOT_SERVED = {
    RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG, RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}  # fmt: skip


async def test_every_command_of_the_table_has_a_handler_and_no_other_code_has_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        gateway = running.broker._gateway
        assert set(gateway.handlers) == set(COMMANDS) == {*RequestCode, *OURS.values()} - NOT_SERVED
        code = RequestCode.SEND_MESSAGE
        with pytest.raises(AssertionError, match="two handlers"):
            gateway.bind(code, COMMANDS[code], None, lambda connection, request: None)


#: What a field of this name names. A command that has one says so in its row.
NAMES = {
    "topic": Resource.TOPIC, "topics": Resource.TOPIC, "topic_list": Resource.TOPIC,
    "group": Resource.GROUP, "producer_group": Resource.GROUP, "consumer_group": Resource.GROUP, "group_name": Resource.GROUP,
    "tx_id": Resource.TRANSACTION, "msg_id": Resource.TRANSACTION, "query": Resource.QUERY, "query_topic": Resource.QUERY,
    "coordinator": Resource.COORDINATOR,
}  # fmt: skip
#: What the body of a request names besides its fields. The others with a body: messages, limits, counts, offsets of topics in the fields,
#: and 200, whose body is read into its fields.
IN_BODIES = {
    **dict.fromkeys((34, 41, 42, 46, 400, 401), frozenset({Resource.GROUP, Resource.TOPIC})),
    **dict.fromkeys((10, 200, 310, 320, 324, 325, codes.HMQ_POSITION, codes.HMQ_PRODUCER), frozenset()),
    **dict.fromkeys((codes.HMQ_PREPARE_BATCH, codes.HMQ_DECIDE), frozenset()),
    codes.HMQ_UNDECIDED: frozenset({Resource.TRANSACTION}),
}


@pytest.mark.parametrize("code", COMMANDS)
def test_a_row_says_every_resource_that_its_request_names_and_where(code: int) -> None:
    named, kind = COMMANDS[code].access.named, fields_of(code)
    fields = set(() if kind is None else kind.__struct_fields__)
    by = {field for one in named for field in one.by}
    assert by <= fields
    assert fields.intersection(NAMES) <= by
    # A topic or a group may be a part of the name of something else.
    assert all(
        one.resource in map(NAMES.get, one.by) for one in named if one.by and one.resource is not Resource.MESSAGE
    )
    assert bool(REQUESTS[code][1]) == (code in IN_BODIES)
    assert {one.resource for one in named if not one.by} == IN_BODIES.get(code, set())


def test_what_operators_change_has_rules_and_nothing_else_but_an_offset() -> None:
    operated = {code for code, command in COMMANDS.items() if command.access.action is Action.OPERATE}
    assert {code for code, command in COMMANDS.items() if command.rules} - operated == {
        RequestCode.UPDATE_CONSUMER_OFFSET
    }
    assert all(COMMANDS[code].rules for code in operated)


def test_what_is_of_clients_alone_is_not_for_operators() -> None:
    """They list, settle and repair while all places for clients are taken."""
    assert {code for code, command in COMMANDS.items() if command.of_clients} == {
        10, 11, 34, 36, 310, 320, 361, codes.HMQ_FENCE, codes.HMQ_POLL_CHECKS, codes.HMQ_PREPARE_BATCH,
    }  # fmt: skip
    assert not any(c.of_clients for c in COMMANDS.values() if c.access.action in (Action.READ, Action.OPERATE))
    assert {code for code, command in COMMANDS.items() if command.while_draining} == {35, 37}
