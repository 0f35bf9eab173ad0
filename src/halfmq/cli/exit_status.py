"""Exit statuses of the command line: one enumeration, and what each means for each command. docs/errors.md has the same table."""

from enum import IntEnum
from typing import Final


class ExitStatus(IntEnum):
    """The first three are those of every command. Scripts rely on the numbers: one never changes its meaning."""

    SUCCESS = 0
    #: Also what a command was asked to find: damage, violations, differences.
    FAILED = 1
    #: Also Click's status for options that do not exist.
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNKNOWN_OUTCOME = 5
    STILL_UNDECIDED = 6
    DAMAGE_FOUND = 7


#: Command -> the statuses with which it ends by itself. One that is not named here ends as its group.
MEANINGS: Final[dict[str, dict[ExitStatus, str]]] = {
    "halfmq serve": {
        ExitStatus.SUCCESS: "stopped by SIGTERM or SIGINT, after a checkpoint",
        ExitStatus.FAILED: "it could not start, or had to stop; the last line says why",
        ExitStatus.USAGE: "usage error",
    },
    "halfmq config": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "the broker is away; `unset` of a setting that nobody set; any other failure",
        ExitStatus.USAGE: "`halfmq serve` would refuse these settings; a setting that does not change while the broker runs, an invalid value or field (code 29), a missing confirmation; usage error",
        ExitStatus.NOT_FOUND: "the broker has no such setting",
        ExitStatus.REFUSED: "rejected: your user may not (code 16), or there is no space to record it (code 2)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. `halfmq config get` says whether it was made; repeating it is harmless",
    },
    "halfmq backup": {
        ExitStatus.SUCCESS: "the backup is complete and was read back",
        ExitStatus.FAILED: "any other failure; a backup that was in DIR before is still valid",
        ExitStatus.USAGE: "usage error; DIR is of another store, or no backup, or the broker's log does not continue it",
    },
    "halfmq restore": {
        ExitStatus.SUCCESS: "the store is restored",
        ExitStatus.FAILED: "the backup is damaged, or the disk failed",
        ExitStatus.USAGE: "usage error; no backup, DATA is not empty, or a position that the backup does not have",
    },
    "halfmq tx": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid field (code 29), a missing name or confirmation",
        ExitStatus.NOT_FOUND: "no such transaction",
        ExitStatus.REFUSED: "rejected: codes 604, 14, 2 and 16; or your user is not accepted",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. Run the command again: repeating it is harmless",
        ExitStatus.STILL_UNDECIDED: "`halfmq tx check` checked, and the transaction is still undecided",
        ExitStatus.DAMAGE_FOUND: "`halfmq tx damaged` found a verdict that contradicts a database",
    },
    "halfmq relay": {
        ExitStatus.SUCCESS: "stopped by SIGTERM or SIGINT; with `--once`: everything that was due is published",
        ExitStatus.FAILED: "it could not start, or had to stop, with `--once` also by a signal; the last line says why",
        ExitStatus.USAGE: "usage error: no such module or application, or one without relays",
        ExitStatus.REFUSED: "`--once` published what the target takes; messages that it rejects are set aside",
    },
    "halfmq worker": {
        ExitStatus.SUCCESS: "stopped by SIGTERM or SIGINT",
        ExitStatus.FAILED: "it could not start, with `--no-wait` also since no broker answers; or a second signal ended it",
        ExitStatus.USAGE: "usage error: no such module or application",
    },
    "halfmq asyncapi": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "importing the application failed",
        ExitStatus.USAGE: "usage error: not an App, or a type without a JSON Schema",
    },
    "halfmq outbox": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: no such application, a missing name or confirmation",
        ExitStatus.NOT_FOUND: "no such message, or nothing stops this sharding key",
        ExitStatus.REFUSED: "rejected: the message has another state, or is being published",
    },
    "halfmq db": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "the database, the broker or the application failed",
        ExitStatus.USAGE: "usage error: no such application, or one without tables of halfmq; a missing option",
    },
    "halfmq topic": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid name or field (code 29), nothing to change, a missing confirmation",
        ExitStatus.NOT_FOUND: "no such topic",
        ExitStatus.REFUSED: "rejected: the topic exists, it would lose messages (code 2), or your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. `halfmq topic show` says what became of it",
    },
    "halfmq group": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid name or field (code 29), a missing confirmation",
        ExitStatus.NOT_FOUND: "no such group, or nothing to reset",
        ExitStatus.REFUSED: "rejected: consumers of the group are connected, or your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. Run the command again: repeating it is harmless",
    },
    "halfmq send": {
        ExitStatus.SUCCESS: "the message is stored, or its transaction settled",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid topic, key, tag or property",
        ExitStatus.REFUSED: "rejected: your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "no response came: the message may be stored. `halfmq peek` by its key says it",
    },
    "halfmq consume": {
        ExitStatus.SUCCESS: "success, also if there was no message",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: no time, or options that contradict each other",
        ExitStatus.NOT_FOUND: "no such topic",
        ExitStatus.REFUSED: "rejected: your user may not (code 16)",
    },
    "halfmq peek": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: no time, or not exactly one selection",
        ExitStatus.NOT_FOUND: "no such topic or message",
        ExitStatus.REFUSED: "rejected: your user may not (code 16)",
    },
    "halfmq dead": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: no time, no group, a missing confirmation",
        ExitStatus.NOT_FOUND: "no such dead letter",
        ExitStatus.REFUSED: "rejected: your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "a message was sent and no response came. Run the command again: what was sent is not sent a second time",
    },
    "halfmq client": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid field (code 29), a missing name or confirmation",
        ExitStatus.NOT_FOUND: "no such client is connected",
        ExitStatus.REFUSED: "rejected: your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. `halfmq client list` says whether the connection is there",
    },
    "halfmq context": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "the file of contexts cannot be read or written",
        ExitStatus.USAGE: "usage error: an invalid URL or name",
        ExitStatus.NOT_FOUND: "no such context",
    },
    "halfmq diagnose": {
        ExitStatus.SUCCESS: "the archive is written; what could not be found out is said in it",
        ExitStatus.FAILED: "the archive cannot be written, or is there already",
        ExitStatus.USAGE: "usage error: an invalid URL, or a file that does not exist",
    },
    "halfmq query": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid field (code 29), a missing name or confirmation",
        ExitStatus.NOT_FOUND: "no such query",
        ExitStatus.REFUSED: "rejected: it has undecided batches (code 2), or your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. Run the command again: if it says that there is no such query, it was forgotten",
    },
    "halfmq coordinator": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid field (code 29), a missing name or confirmation",
        ExitStatus.NOT_FOUND: "no such coordinator",
        ExitStatus.REFUSED: "rejected: it has undecided transactions (code 2), or your user may not (code 16)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. Run the command again: if it says that there is no such coordinator, it was forgotten",
    },
    "halfmq user": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "any other failure",
        ExitStatus.USAGE: "usage error: an invalid name, permission or field, or a new user with the name of another one (code 29), a missing option or confirmation",
        ExitStatus.NOT_FOUND: "no such user",
        ExitStatus.REFUSED: "rejected: you are no administrator (code 16), it is the last administrator, one user too many, or there is no TLS for its secret (code 2)",
        ExitStatus.UNKNOWN_OUTCOME: "a change was requested and no response came. `halfmq user list` says whether there is such a user; if its secret is new, nobody knows it: `halfmq user rotate`",
    },
    "halfmq store verify": {
        ExitStatus.SUCCESS: "no damage",
        ExitStatus.FAILED: "damage",
        ExitStatus.USAGE: "not a store, or it cannot be read; usage error",
    },
    "halfmq store dump": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "damage was found; the records before it were printed",
        ExitStatus.USAGE: "not a store, or an unknown kind; usage error",
    },
    "halfmq check-history": {
        ExitStatus.SUCCESS: "no violation",
        ExitStatus.FAILED: "violations",
        ExitStatus.USAGE: "invalid input, or nothing to check; usage error",
    },
    "halfmq pipeline": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "the job failed",
        ExitStatus.USAGE: "options that cannot be used",
    },
    "halfmq pipeline reconcile": {
        ExitStatus.SUCCESS: "table and messages are equal",
        ExitStatus.FAILED: "differences",
        ExitStatus.USAGE: "not compared: wrong options, or the broker or the database is away",
    },
    "halfmq bench": {
        ExitStatus.SUCCESS: "success",
        ExitStatus.FAILED: "it could not be measured",
        ExitStatus.USAGE: "usage error",
    },
}


def exit_text(command: str) -> str:
    """One line about the statuses of a command, for the end of its help."""
    return f"Exit status: {', '.join(f'{status.value} {text}' for status, text in MEANINGS[command].items())}."
