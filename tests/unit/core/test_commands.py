"""Commands carry the numbers that the protocol uses."""

from halfmq.core.commands import Command, RequestedVerdict


def test_wanted_has_the_numbers_of_commit_or_rollback_on_the_wire() -> None:
    assert {wanted.name: wanted.value for wanted in RequestedVerdict} == {"UNKNOWN": 0, "COMMIT": 8, "ROLLBACK": 12}


def test_every_command_is_a_value_and_says_what_it_is_for() -> None:
    for command in Command.__args__:
        assert issubclass(command, tuple) or command.__struct_config__.frozen
        assert command.__doc__
