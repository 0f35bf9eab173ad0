"""What the driver does when all tasks are done: one decision on the broker, which makes the rows of the batch visible.

Spark calls a commit at least once for each batch, and again after a crash. The first decision stands; one that comes again is told
from a contradiction by its digest.
"""

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from halfmq.client.log import logger
from halfmq.errors import EnvironmentFailed, HalfmqError, TransactionRefused
from halfmq.model.query_batch import QueryBatch, query_text
from halfmq.spark.sink.broker import COMMITTED, CONTRADICTION, SinkBroker
from halfmq.spark.sink.checkpoint import BatchInput, Checkpoint, digest_of
from halfmq.spark.sink.options import SinkOptions
from halfmq.spark.sink.task import Prepared
from halfmq.wire.remoting.half_batches import WinnerRow

_log: Final = logger("halfmq.spark")
#: How long ``abort_batch_write`` waits for the broker.
_ABORT_TIMEOUT_MS: Final = 10_000
#: Of a line of offsets, in a warning.
_SHOWN_CHARS: Final = 100
#: Checkpoints that the process has warned of. Spark commits all batches of a query in one process.
_warned: Final[set[str]] = set()


def decide_batch_write(messages: Sequence[Prepared], options: SinkOptions, batch: QueryBatch) -> None:
    """Decide a batch write. Without ``txnAppId`` it is a query of its own, which has no other batch.

    Its number alone says what it is, as in Delta Lake: one that repeats a number is skipped, whatever its rows. With a checkpoint it is
    also the input of the stream's batch with this number. Raises as ``decide_stream``.
    """
    named = digest_of(options.app_id, str(options.version))
    if not options.checkpoint:
        decide(messages, options, batch, named, is_last=not options.app_id)
        return
    found = _secured(options.checkpoint, options.version)
    digest, *others = (
        digest_of(options.app_id, str(options.version), one.hex()) for one in (found.digest, *found.other_digests)
    )
    decide(messages, options, batch, digest, other_digests=(*others, named))


def abort_batch_write(options: SinkOptions, batch: QueryBatch) -> None:
    """Decide that nothing of a failed batch write becomes visible, so that the broker can drop it. Best effort: logs a failure.

    Spark also calls it after a commit that raised and may have taken effect; the first decision stands, so this changes nothing then.
    A write with ``txnAppId`` may be repeated, so it stays undecided: its next run supersedes what this one has prepared.
    """
    if options.app_id:
        return
    within = replace(options, broker_timeout_ms=min(options.broker_timeout_ms, _ABORT_TIMEOUT_MS))
    with closing(SinkBroker(within)) as broker:
        try:
            broker.decide(batch, digest_of("aborted"), (), is_last=True)
        except TransactionRefused:
            pass  # the commit took effect
        except HalfmqError as error:
            _log.warning(
                "halfmq: what batch write %s has prepared stays undecided on the broker: %s", batch.query, error
            )


def decide_stream(messages: Sequence[Prepared], options: SinkOptions, number: int) -> None:
    """Decide batch ``number`` of a stream. Raises as ``decide``, and:

    Raises:
        EnvironmentFailed: the checkpoint cannot be read or synced, or is not that of the query. Nothing was decided.
    """
    if not messages:
        return  # without tasks there are no rows; the next batch decides this one, too
    batches = {message.batch for message in messages}
    if len(batches) > 1 or messages[0].batch.batch != number:
        raise EnvironmentFailed(f"Spark commits batch {number} with tasks of {sorted(batches)}")
    checkpoint = Checkpoint(options.checkpoint)
    query_id = checkpoint.query_id()
    if query_id != messages[0].query_id:
        raise EnvironmentFailed(
            f"{checkpoint.directory} is the checkpoint of query {query_id}, not of {messages[0].query_id}",
            hint="checkpointLocation must be the directory that the query uses, absolute and of the local file system",
        )
    found = _secured(options.checkpoint, number)
    decide(messages, options, messages[0].batch, found.digest, other_digests=found.other_digests)


def _secured(checkpoint: str, number: int) -> BatchInput:
    """The input of a batch, synced. Warns once of what it does not identify. Raises as ``Checkpoint.secure``."""
    found = Checkpoint(checkpoint).secure(number)
    if found.unidentified and checkpoint not in _warned:
        _warned.add(checkpoint)
        _log.warning(
            "halfmq: batches of the query with checkpoint %s are known only by the line of their source, such as %s. If this checkpoint is "
            "restored to an older state, or the source has other rows under the same line, a batch that was written before is skipped, and "
            "nobody notices that its rows are others",
            checkpoint,
            ", ".join(line[:_SHOWN_CHARS] for line in found.unidentified),
        )
    return found


def decide(
    messages: Sequence[Prepared],
    options: SinkOptions,
    batch: QueryBatch,
    digest: bytes,
    *,
    other_digests: Sequence[bytes] = (),
    is_last: bool = False,
) -> None:
    """Make what the tasks have prepared visible. Success if the same was decided before.

    ``other_digests``: by which it may have been decided as well. ``is_last``: as for ``SinkBroker.decide``.

    Raises:
        TransactionRefused: the batch was decided with another digest, or a later run has begun. Stop.
        TransactionIncomplete: half batches are missing; nothing was decided. Run the batch again.
        ConnectError, RequestFailed: whether it is decided is unknown. Run the batch again.
    """
    with closing(SinkBroker(options)) as broker:
        if not any(message.decided for message in messages):
            winners = [
                WinnerRow(message.attempt, message.half_batches, message.messages, message.checksum)
                for message in messages
                if message.half_batches
            ]
            try:
                broker.decide(batch, digest, winners, is_last=is_last)
                return
            except TransactionRefused as refused:
                if refused.standing != COMMITTED:
                    raise
        _check_decided(broker, batch, (digest, *other_digests), options)


def _check_decided(broker: SinkBroker, batch: QueryBatch, digests: Collection[bytes], options: SinkOptions) -> None:
    """The batch is decided, as a task or the broker said. The decision must still be there, and must be one of ``digests``; to decide now
    would make the rows of some tasks visible and not those of others.
    """
    found = broker.decision(batch)
    what = batch.text
    if not found.is_decided:
        raise TransactionRefused(
            f"{what} was decided when its tasks began, and is no longer: the store of the broker was replaced",
            hint="find out which store is right before you start the query again",
        )
    if found.digest and found.digest in digests:
        return
    if not found.digest and options.version >= 0:
        raise TransactionRefused(
            f"txnVersion {batch.batch} of {query_text(batch.query, batch.topic)} is smaller than {found.last_batch}, which was written last",
            standing=COMMITTED,
            hint="each write needs a larger number; the broker knows only of the last one what it was",
        )
    if found.digest:
        why = f"was decided with other content at position {found.position}: the application repeats it with other input than before"
    else:
        why = (
            f"was decided long ago (the last one is {found.last_batch}): the checkpoint is older than what was written"
        )
    raise TransactionRefused(f"{what} {why}", standing=COMMITTED, hint=CONTRADICTION)
