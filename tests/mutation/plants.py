"""Bugs to plant, one at a time: each is a change of a few lines that somebody could make, and that the tests must notice.

A plant names the file, the text that is there, and what to put in its place. The text must occur exactly once, so that a
plant whose place has moved is noticed (``test_plants``) and not silently skipped.
"""

from pathlib import Path
from typing import Final, NamedTuple


class Plant(NamedTuple):
    """``file``: below ``src/halfmq``. ``promise``: the number of the promise that it breaks, in docs/promises.md; 0: what
    stands there beside the ten (consumers get messages at least once), or what another page says."""

    name: str
    promise: int
    says: str
    file: str
    old: str
    new: str


class OutOfDate(Exception):
    """The text of a plant is not there, or not once."""


PLANTS: Final = (
    # --- 1, agreement
    Plant(
        "verdict-not-checked",
        1,
        "an opposite verdict is answered as if it had been given",
        "core/transaction/machine.py",
        "        case Outcome.CONFLICTS:\n            return Refused(",
        "        case Outcome.CONFLICTS:\n            return Settled(group, tx_id, not committed, position, True)\n"
        "            return Refused(",
    ),
    Plant(
        "verdict-forgotten",
        1,
        "a commit leaves no verdict in memory",
        "core/apply.py",
        "    verdict = Verdict(group_name, tx_id, True, offset, state.batch_time_ms, halves, places, decided_by)\n"
        "    remember_verdict(state, group, verdict)",
        "    verdict = Verdict(group_name, tx_id, True, offset, state.batch_time_ms, halves, places, decided_by)",
    ),
    Plant(
        "row-says-rolled-back",
        1,
        "the transaction table says of committed halves that they were rolled back",
        "store/indexes.py",
        "settled(half_index, ROW_COMMITTED, decided_by,",
        "settled(half_index, ROW_ROLLED_BACK, decided_by,",
    ),
    Plant(
        "half-after-verdict",
        1,
        "a half that is sent again after its verdict begins the transaction anew",
        "core/transaction/machine.py",
        "        elif tx_id in group.settled:\n            return Decision(NOTHING, _already_settled(group.settled[tx_id]))\n",
        "",
    ),
    Plant(
        "operator-overrides",
        1,
        "an operator's verdict is told as given where the other one stands",
        "core/transaction/machine.py",
        "        NOTHING,\n        _standing(command.wanted, command.group, command.tx_id, committed=verdict.committed, "
        "position=verdict.position),\n    )",
        "        NOTHING,\n        Settled(command.group, command.tx_id, command.wanted == Wanted.COMMIT, verdict.position, True),\n    )",
    ),
    # --- 2, validity
    Plant(
        "unknown-is-rollback",
        2,
        "a producer that does not know is taken for one that rolls back",
        "core/transaction/machine.py",
        "    answered = tx_id in group.session.in_flight\n",
        "    answered = tx_id in group.session.in_flight\n    if answered:\n        return _roll_back(state, known, decided_by)\n",
    ),
    Plant(
        "wrong-offsets-accepted",
        2,
        "a verdict settles a transaction whose offsets it does not name",
        "core/transaction/machine.py",
        "    else:\n        return Decision(NOTHING, _wrong_offsets(tx_id, half_index, log_offset))\n    if wanted is _COMMIT:",
        "    if wanted is _COMMIT:",
    ),
    Plant(
        "rollback-commits",
        2,
        "a rollback record is followed by the queues as a commit",
        "core/transaction/machine.py",
        "        return _settled(group, tx_id, _roll_back(state, known, command.decided_by))\n",
        "        return _settled(group, tx_id, _commit(state, known, command.decided_by, now_ms))\n",
    ),
    Plant(
        "check-raised-is-rollback",
        2,
        "a check function that raises is answered with ROLLBACK by our client",
        "client/check_listener.py",
        '(%s) failed; UNKNOWN", transaction.id, transaction.name)\n            return Outcome.UNKNOWN',
        '(%s) failed; UNKNOWN", transaction.id, transaction.name)\n            return Outcome.ROLLBACK',
    ),
    Plant(
        "open-block-is-rollback",
        2,
        "a check that meets a block still open in our client is answered with ROLLBACK",
        "client/verdicts.py",
        "        self._known[tx_id] = Outcome.UNKNOWN\n",
        "        self._known[tx_id] = Outcome.ROLLBACK\n",
    ),
    # --- 3, once in the log
    Plant(
        "half-stored-again",
        3,
        "a half that is sent again while undecided is stored a second time",
        "core/transaction/machine.py",
        "            if answered is not None:\n                return Decision(NOTHING, answered)\n",
        "            if isinstance(answered, Refused):\n                return Decision(NOTHING, answered)\n",
    ),
    Plant(
        "plain-stored-again",
        3,
        "a plain message that is sent again is stored a second time",
        "core/queues/deduplication.py",
        "    if sent is None or sent.body_crc != body_crc:\n        return None",
        "    if sent is not None or sent is None:\n        return None",
    ),
    Plant(
        "new-id-for-each-attempt",
        3,
        "our client sends a plain message again without saying so",
        "client/producer.py",
        "                    sent_again=attempts.outcome_unknown,\n",
        "                    sent_again=False,\n",
    ),
    Plant(
        "queue-entries-stay",
        3,
        "queue entries behind the recovered end of the log are not cut",
        "store/store.py",
        "        self.indexes.cut(self.log.end, next_half_index)\n",
        "        self.indexes._redoing = False\n        self.indexes.table.flush()\n        self.indexes.queues.flush()\n"
        "        self.indexes.keys.flush()\n",
    ),
    Plant(
        "sent-again-ignores-body",
        3,
        "a message with a used id and another body is taken for the first one; the simulation rightly cannot see it, since "
        "its clients use an id once, as docs/promises.md takes for granted",
        "core/queues/deduplication.py",
        "    if sent is None or sent.body_crc != body_crc:\n        return None\n",
        "    if sent is None:\n        return None\n",
    ),
    Plant(
        "sent-not-in-snapshot",
        3,
        "what was sent before a snapshot is not remembered behind it",
        "core/schema.py",
        "    return list(state.sent)\n",
        "    return []\n",
    ),
    Plant(
        "verdicts-not-in-snapshot",
        3,
        "verdicts before a snapshot are not remembered behind it",
        "core/schema.py",
        "    return list(state.verdicts)\n",
        "    return []\n",
    ),
    # --- 4, all or none
    Plant(
        "commit-not-atomic",
        4,
        "each message of a transaction gets a commit record of its own",
        "core/transaction/machine.py",
        "    size = committed_size(known.group, known.tx_id, len(refs))\n"
        "    records.append(Committed(offset, size, known.group, known.tx_id, decided_by, tuple(refs)))\n",
        "    for ref in refs:\n        size = committed_size(known.group, known.tx_id, 1)\n"
        "        records.append(Committed(offset, size, known.group, known.tx_id, decided_by, (ref,)))\n"
        "        offset += size\n",
    ),
    Plant(
        "incomplete-commits",
        4,
        "a transaction is committed before all its messages are here",
        "core/transaction/machine.py",
        "    if count != len(halves):\n        said =",
        "    if count and count < len(halves):\n        said =",
    ),
    Plant(
        "one-half-forgotten",
        4,
        "a commit of several shows all messages but the last",
        "core/transaction/machine.py",
        "    for half, place in zip(known.halves, places, strict=True):\n",
        "    for half, place in zip(known.halves[: max(1, len(places) - 1)], places, strict=False):\n",
    ),
    # --- 5, durable answers
    Plant(
        "reply-before-sync",
        5,
        "answers leave when a batch is written, not when it is durable",
        "store/store.py",
        "        return self.log.synced_position if self.durability is Durability.FSYNC else self.log.end\n",
        "        return self.log.end\n",
    ),
    Plant(
        "no-sync",
        5,
        "a batch is called durable without fdatasync",
        "store/commit_log.py",
        "            if segment.name_synced:\n                segment.file.sync()\n",
        "            if segment.name_synced:\n                pass\n",
    ),
    Plant(
        "name-not-synced",
        5,
        "the name of a new segment is not made durable",
        "store/segment.py",
        "        self.file.sync()\n        disk.sync_directory(self.path.parent)\n",
        "        self.file.sync()\n",
    ),
    Plant(
        "failed-sync-forgiven",
        5,
        "after a failed fdatasync the next one counts",
        "store/commit_log.py",
        "                except OSError as error:\n                    self.failure = error\n"
        "                    raise self._poisoned() from error\n                self.synced_position = position",
        "                except OSError:\n                    return self.synced_position\n"
        "                self.synced_position = position",
    ),
    Plant(
        "replies-without-records-leave",
        5,
        "an answer that wrote nothing does not wait for what it reveals",
        "broker/sequencer.py",
        "            self.backlog += len(turn.replies)\n            self._held.append(turn)\n",
        "            if not turn.batches and self._held:\n                for deliver, context, reply in turn.replies:\n"
        "                    deliver(context, reply)\n                turn = turn._replace(replies=[])\n"
        "            self.backlog += len(turn.replies)\n            self._held.append(turn)\n",
    ),
    Plant(
        "memory-answers-at-once",
        5,
        "what is read from memory is answered at once, also where memory is ahead of the disk",
        "broker/sequencer.py",
        "        if self._held:\n            self._held[-1].submitted.append((_READ, deliver, context))\n",
        "        if not self._held and self._held:\n            self._held[-1].submitted.append((_READ, deliver, context))\n",
    ),
    # --- 6, retention
    Plant(
        "carries-what-no-bound-saw",
        6,
        "a step towards a trim looks once more after its bound was asked for, and carries what it finds then",
        "core/transaction/retention.py",
        "    count = 0\n    for what in state.session.copy_progress.found:\n",
        "    count = 0\n    state.session.copy_progress.look()\n    for what in state.session.copy_progress.found:\n",
    ),
    Plant(
        "any-clock-is-believed",
        6,
        "retention by age counts a jump of the clock between two runs as time that passed",
        "core/clock_jumps.py",
        "    return now_ms - stored_ms - sum(",
        "    return now_ms - stored_ms - 0 * sum(",
    ),
    Plant(
        "copies-round-and-round",
        6,
        "retention by size copies again what it has just copied",
        "core/retention.py",
        "        if too_old or may_copy_again(",
        "        if True or may_copy_again(",
    ),
    Plant(
        "trims-what-is-to-stay",
        6,
        "retention trims although neither size nor age asks for it",
        "core/retention.py",
        "        if not (too_old or too_far) or newest_ms >= young_from_ms or start != reached:\n",
        "        if newest_ms >= young_from_ms or start != reached:\n",
    ),
    Plant(
        "trims-the-window",
        3,
        "retention trims verdicts that a client may still ask for again",
        "core/retention.py",
        "        if not (too_old or too_far) or newest_ms >= young_from_ms or start != reached:\n",
        "        if not (too_old or too_far) or start != reached:\n",
    ),
    Plant(
        "rot-is-copied",
        6,
        "a half or delayed message that has rotted is copied as it is",
        "store/store.py",
        "        return self.log.why_not_copied(source, message_bytes)\n",
        "        return None\n",
    ),
    Plant(
        "trim-drops-undecided",
        6,
        "a trim does not carry undecided halves forward",
        "core/transaction/retention.py",
        "            for half in below:\n                yield group.name, tx_id, half.half_index\n            if not below:\n"
        "                yield None\n",
        "            yield None\n",
    ),
    Plant(
        "trim-drops-delayed",
        6,
        "a trim does not carry delayed messages forward",
        "core/transaction/retention.py",
        "        yield first if message is not None and message.offset < log_start else None\n",
        "        yield None\n",
    ),
    Plant(
        "ref-to-a-deleted-segment",
        6,
        "a commit refers to a half in an older segment instead of copying it",
        "core/transaction/machine.py",
        "        if half.offset >= segment:\n            places.append(half.offset)\n            continue\n",
        "        if half.offset >= 0:\n            places.append(half.offset)\n            continue\n",
    ),
    Plant(
        "unlink-before-trim-is-durable",
        6,
        "segments go before the record that gives them up is durable",
        "broker/maintenance.py",
        "            self._sequencer.submit(TrimLog(self._trimming), self._trimmed)\n",
        "            self._sequencer.submit(TrimLog(self._trimming), None)\n            self._trimmed(None, Done())\n",
    ),
    # --- 7, progress
    Plant(
        "immunity-ignored",
        7,
        "a half is checked at once, while its local transaction runs",
        "core/apply.py",
        "    grace_until_ms = now_ms + (immunity_ms if immunity_ms >= 0 else state.grace_ms)\n",
        "    grace_until_ms = now_ms\n",
    ),
    Plant(
        "check-counted-without-reach",
        7,
        "a check that reached nobody counts",
        "core/transaction/check_schedule.py",
        "    checks = max(0, known.checks - 1)\n",
        "    checks = known.checks\n",
    ),
    Plant(
        "back-off-without-end",
        7,
        "the time between checks doubles without a maximum",
        "core/transaction/check_schedule.py",
        "            interval = settings.check_interval_max_ms\n            break\n",
        "            continue\n",
    ),
    Plant(
        "unreached-not-due",
        7,
        "a check that was not answered is not asked again",
        "core/transaction/check_schedule.py",
        "                group.session.due.extend(ids)\n",
        "                group.session.due.extend(tx_id for tx_id in ids if not group.undecided[tx_id].checks)\n",
    ),
    Plant(
        "checks-lost-at-snapshot",
        7,
        "what is undecided at a snapshot has no check scheduled behind it",
        "core/schema.py",
        "        schedule_or_suspend(state, group, tx_id, check)\n",
        "",
    ),
    Plant(
        "misfit-not-seen",
        7,
        "records that do not fit although the bound said so are applied all the same, and the broker stops",
        "core/engine.py",
        "        if not decision.records or self._fit(decision.records):\n",
        "        if not decision.records or decision.records:\n",
    ),
    Plant(
        "discarded-checks-are-lost",
        7,
        "checks of a decision that is thrown away count as in flight, and nobody asks again",
        "core/transaction/check_schedule.py",
        "        self.in_flight += 1\n",
        "        self.in_flight += 1\n        self.group.session.in_flight[known.tx_id] = InFlight(1 << 62, connection)\n",
    ),
    # --- 8, order
    Plant(
        "one-queue-offset-twice",
        8,
        "two messages of one commit get the same queue offset",
        "core/transaction/machine.py",
        "            ends[queue] = queue_offset + 1\n            wakes[topic.wakes[half.queue_id][0]] = None\n",
        "            wakes[topic.wakes[half.queue_id][0]] = None\n",
    ),
    Plant(
        "key-in-any-queue",
        8,
        "messages with one sharding key go to any queue",
        "client/routing.py",
        "        if sharding_key:\n            # Precedent",
        "        if False:\n            # Precedent",
    ),
    # --- 9, time
    Plant(
        "time-goes-back",
        9,
        "broker time begins at the wall clock, also when that was set back",
        "broker/timers.py",
        "        self._base_ms = max(last_in_log_ms, clock.wall_ms()) - clock.monotonic_ms()\n",
        "        self._base_ms = clock.wall_ms() - clock.monotonic_ms()\n",
    ),
    Plant(
        "delayed-too-early",
        9,
        "a delayed message is shown before its time",
        "core/queues/delay.py",
        "        return now_ms + delay\n",
        "        return now_ms + delay // 4\n",
    ),
    # --- 10, recovery
    Plant(
        "torn-batch-accepted",
        10,
        "a batch whose checksum differs is taken for whole",
        "store/batch_codec.py",
        "    if crc32(buffer[summed_from:end], checksum) != header.checksum:\n"
        '        return NotABatch("the checksum of the batch is wrong")\n    if rotten:\n',
        "    if False:\n",
    ),
    Plant(
        "tail-not-cut",
        10,
        "what is behind a torn tail is not made zero",
        "store/recovery.py",
        "    for start, end in segment.data_ranges(place):\n        segment.file.write(start, [bytes(",
        "    for start, end in ():\n        segment.file.write(start, [bytes(",
    ),
    Plant(
        "cut-believes-the-cache",
        10,
        "a start takes for durable what it reads as zero, although the sync of an earlier cut may have failed",
        "store/recovery.py",
        "    if segment.nonzero_from(place) is None and not disk.exists(unfinished):\n",
        "    if segment.nonzero_from(place) is None:\n",
    ),
    Plant(
        "page-is-no-proof",
        10,
        "what was answered last and is damaged now is cut as a torn tail, although the watermark page says it was durable",
        "store/store.py",
        "recovery = find_out(files, found, page.durable if page is not None else 0)",
        "recovery = find_out(files, found, 0)",
    ),
    Plant(
        "full-disk-keeps-the-page",
        10,
        "where a full disk keeps derived files back, the watermark page does not say what was answered and is durable",
        "store/store.py",
        "            self._say(self._page.durable_to, durable)",
        "            pass",
    ),
    Plant(
        "page-of-memory-is-proof",
        10,
        "a page that was published at level memory is held against the log after a power loss",
        "store/store.py",
        "        durable = self.log.synced_position\n        try:",
        "        durable = self.durable_position\n        try:",
    ),
    Plant(
        "not-written-again",
        10,
        "a start calls durable what a failed sync may have left in the cache alone",
        "store/recovery.py",
        "    _write_again(files, max",
        "    _ = (files, max",
    ),
    Plant(
        "checkpoint-before-log",
        10,
        "a checkpoint is written before the log below it is durable",
        "store/store.py",
        "        self.log.sync(position)\n        try:\n",
        "        try:\n",
    ),
    Plant(
        "damage-is-torn-tail",
        10,
        "damage below the durable position is cut like a torn tail",
        "store/log_scan.py",
        "        if position < durable:\n            return self._corrupt(position, durable, why)\n",
        "",
    ),
    Plant(
        "multi-half-count-lost",
        10,
        "redo of a carried half forgets how many messages its transaction has",
        "core/apply.py",
        "_with_half(known.halves, half), record.count, record.prepared_at_ms,",
        "_with_half(known.halves, half), len(known.halves), record.prepared_at_ms,",
    ),
    Plant(
        "trim-not-redone",
        10,
        "redo does not follow a trim",
        "core/apply.py",
        "    log_start = record.log_start\n    state.log_start = log_start\n",
        "    log_start = record.log_start\n",
    ),
    Plant(
        "epoch-kept",
        10,
        "two starts have the same epoch",
        "core/schema.py",
        "    state.epoch = record.epoch\n",
        "    state.epoch = max(1, state.epoch)\n",
    ),
    Plant(
        "gone-log-is-a-first-start",
        10,
        "a directory whose log somebody removed is taken for a new one",
        "store/store.py",
        "            if page is not None and page.position > 0 and not files.numbers():\n",
        "            if page is not None and page.position < 0 and not files.numbers():\n",
    ),
    Plant(
        "verdict-needs-the-place",
        1,
        "a verdict whose half was trimmed, in a table that was made again, is denied",
        "core/transaction/machine.py",
        "row.first_offset in (log_offset, 0):",
        "row.first_offset == log_offset:",
    ),
    Plant(
        "set-aside-is-not-undecided",
        2,
        "who prunes markers is told that what was set aside is settled: its next check says ROLLBACK",
        "core/transaction/listing.py",
        "    if len(group.undecided) < len(ids):\n        return [tx_id for tx_id in group.undecided if tx_id in ids]\n    return [tx_id for tx_id in ids if tx_id in group.undecided]\n",
        "    asked = [known for known in group.undecided.values() if type(known.next_check) is int]\n    return [known.tx_id for known in asked if known.tx_id in ids]\n",
    ),
    Plant(
        "topic-shrinks-over-messages",
        4,
        "a topic loses a read queue that holds messages of a transaction",
        "core/topics.py",
        "    text = _out_of_reach(state, topic, read_queues)\n",
        "    text = ''\n",
    ),
    Plant(
        "immunity-of-today",
        7,
        "redo works out an immunity from the settings of now, not from those that it was written under",
        "core/schema.py",
        "    state.epoch_grace_ms = immunity_ms\n",
        "    state.epoch_grace_ms = -1\n",
    ),
    Plant(
        "half-the-delay",
        8,
        "a delayed message of a transaction is shown after half of its time",
        "core/transaction/machine.py",
        "        due_ms = due_at(half.delay, now_ms)\n",
        "        due_ms = due_at(half.delay, now_ms)\n        due_ms -= due_ms and (due_ms - now_ms) // 2\n",
    ),
    # --- beside the ten
    Plant(
        "torn-key-stays",
        0,
        "the last entry of a key file counts although the write was cut short",
        "store/key_index.py",
        "            if start + self._segment_bytes > position:\n",
        "            if start + self._segment_bytes < 0:\n",
    ),
    Plant(
        "offset-passes-one",
        0,
        "a consumer group's offset is stored one too far, so that its next owner skips a message",
        "core/queues/offsets.py",
        "event.topic_id, event.queue_id] = event.offset\n    if",
        "event.topic_id, event.queue_id] = event.offset + 1\n    if",
    ),
    Plant(
        "offset-told-one-too-far",
        0,
        "a consumer group is told to go on one behind where it stands",
        "core/queues/offsets.py",
        "            return Stored(offset)\n",
        "            return Stored(offset + 1)\n",
    ),
    Plant(
        "handed-back-and-gone",
        0,
        "a message that a consumer hands back is answered OK, and not stored",
        "core/queues/retry.py",
        "else chosen(topic, decision._replace(reply=Done()))\n",
        "else Decision(NOTHING, Done())\n",
    ),
    Plant(
        "parked-pulls-sleep",
        0,
        "a parked pull is answered when its time is up, and not when a message comes",
        "broker/services/pulls.py",
        "        if not there:\n            return\n        queue = (effect",
        "        if there or not there:\n            return\n        queue = (effect",
    ),
    Plant(
        "keys-not-indexed",
        0,
        "messages are not found by their keys",
        "store/key_index.py",
        "        hashes = key_hashes(topic, keys)\n        if hashes:\n",
        "        hashes = key_hashes(topic, keys)\n        if not hashes:\n",
    ),
    # --- beside the ten: tags
    Plant(
        "released-loses-its-tag",
        0,
        "a delayed message is shown without its tag, so that nobody who filters is given it",
        "core/queues/delay.py",
        "                delayed.queue_id, queue_offset, 0, delayed.tag_hash, delayed.key_hash,\n",
        "                delayed.queue_id, queue_offset, 0, 0, delayed.key_hash,\n",
    ),
    Plant(
        "copied-delayed-loses-its-tag",
        0,
        "a delayed message that is carried forward loses its tag",
        "core/queues/delay.py",
        "delayed.queue_id, delayed.message_bytes, delayed.due_ms, delayed.tag_hash, delayed.key_hash,\n",
        "delayed.queue_id, delayed.message_bytes, delayed.due_ms, 0, delayed.key_hash,\n",
    ),
    Plant(
        "committed-half-loses-its-tag",
        0,
        "a message of a transaction is shown without its tag",
        "core/transaction/machine.py",
        "            half.tag_hash,\n",
        "            0,\n",
    ),
    Plant(
        "delayed-half-loses-its-tag",
        0,
        "a message of a transaction with a delay is shown without its tag",
        "core/transaction/machine.py",
        "queue_offset, due_ms, half.tag_hash, half.key_hash,\n",
        "queue_offset, due_ms, 0, half.key_hash,\n",
    ),
    Plant(
        "copied-half-loses-its-tag",
        0,
        "a half that is carried forward loses its tag",
        "core/transaction/machine.py",
        "to_number(known.next_check), half.queue_id, half.tag_hash, half.key_hash,\n",
        "to_number(known.next_check), half.queue_id, 0, half.key_hash,\n",
    ),
    Plant(
        "filter-passes-over-the-last",
        0,
        "where the last message that was looked at has another tag, the one before it is passed over too",
        "broker/services/pulls.py",
        "            if tags is None or tag_hash in tags:\n",
        "            if tags is None or (tag_hash in tags and entries[-1][2] in tags):\n",
    ),
    # --- beside the ten: what is kept of those who are gone
    Plant(
        "closed-subscriptions-are-kept",
        0,
        "what a closed connection subscribed to is kept in memory",
        "broker/services/members.py",
        "sum(self._subscribed.pop(number, {}).values())\n",
        "sum(self._subscribed.get(number, {}).values())\n",
    ),
    Plant(
        "closed-and-full-is-kept",
        0,
        "a connection that is closed while it does not take its answers is kept in memory",
        "broker/remoting/outgoing_bytes.py",
        "        full = self._full.pop(number, None)\n",
        "        full = self._full.get(number)\n",
    ),
    Plant(
        "closed-and-parked-is-kept",
        0,
        "a parked pull outlives its connection",
        "broker/services/pulls.py",
        "        self._missed.discard(number)\n        for key, queue in list(self._of_peer.get(number, {}).items()):\n",
        "        self._missed.discard(number)\n        for key, queue in ():\n",
    ),
    # --- broker time and durability
    Plant(
        "time-follows-the-wall",
        9,
        "broker time jumps with the wall clock when that is set forward",
        "broker/timers.py",
        "        return self._base_ms + self._clock.monotonic_ms()\n",
        "        return max(self._base_ms + self._clock.monotonic_ms(), self._clock.wall_ms())\n",
    ),
    Plant(
        "sync-covers-what-came-after",
        5,
        "a sync acknowledges what was written while it ran",
        "store/commit_log.py",
        "                self.synced_position = position\n",
        "                self.synced_position = self.end\n",
    ),
    Plant(
        "dirty-while-others-are-synced",
        10,
        "a checkpoint takes for durable what was written to derived files while it synced the others",
        "store/open_files.py",
        "        for directory in list(self._dirty_directories):\n            self._dirty_directories.pop(directory, None)\n",
        "        self.dirty.clear()\n        for directory in list(self._dirty_directories):\n"
        "            self._dirty_directories.pop(directory, None)\n",
    ),
    # --- halfmq.sql
    Plant(
        "inbox-prune-counts-milliseconds",
        0,
        "Inbox.prune takes its seconds for milliseconds, so that old messages are handled twice",
        "sql/inbox.py",
        "round(older_than_s * 1000)",
        "round(older_than_s)",
    ),
    Plant(
        "inbox-forgets-the-group",
        0,
        "what one consumer group has handled is a duplicate for every other one",
        "sql/inbox.py",
        'row = {"consumer_group": group, ',
        'row = {"consumer_group": "", ',
    ),
    Plant(
        "marker-prune-counts-milliseconds",
        2,
        "MarkerTable.prune takes its seconds for milliseconds",
        "sql/marker.py",
        "round(older_than_s * 1000)",
        "round(older_than_s)",
    ),
    Plant(
        "marker-prune-forgets-the-undecided",
        2,
        "markers that the broker still asks about are pruned, so that a check says ROLLBACK of what committed",
        "sql/marker.py",
        "        keep = set(undecided)\n",
        "        keep: set[str] = set()\n",
    ),
    Plant(
        "horizon-does-not-move",
        2,
        "pruning does not note how far, so that the absence of a pruned marker counts as ROLLBACK",
        "sql/marker.py",
        "            self.identity.move_horizon(connection, horizon_ms, self._now_ms())\n",
        "",
    ),
    Plant(
        "rollback-without-a-tombstone",
        1,
        "a check answers ROLLBACK of a missing marker without writing the tombstone, and the local transaction commits later",
        "sql/marker.py",
        "            return self._fence(connection, tx_id, lock_wait_ms) if may_fence else _UNKNOWN\n",
        "            return Decided(Outcome.ROLLBACK) if may_fence else _UNKNOWN\n",
    ),
    Plant(
        "young-is-fenced",
        7,
        "a check fences transactions whose local transaction has just begun",
        "sql/checks.py",
        "        return now - self._first_asked_ms.setdefault(asked.id, now) < self._min_age_ms\n",
        "        return now - self._first_asked_ms.setdefault(asked.id, now) < 0\n",
    ),
    Plant(
        "lost-commit-is-rollback",
        2,
        "an error whose COMMIT may have happened is taken for one that rolled back",
        "sql/commit_failure.py",
        "        return CommitFailure.ROLLED_BACK\n    return CommitFailure.UNKNOWN\n",
        "        return CommitFailure.ROLLED_BACK\n    return CommitFailure.ROLLED_BACK\n",
    ),
    Plant(
        "savepoint-keeps-its-messages",
        2,
        "messages of a savepoint that rolled back are sent with the rest",
        "sql/local_work.py",
        "[one for one in self._collected if ended not in one.savepoints]",
        "list(self._collected)",
    ),
    Plant(
        "block-without-a-marker",
        2,
        "the local transaction commits without its marker",
        "sql/local_work.py",
        "        if not self._collected:\n            self._markers.erase(",
        "        if self._collected:\n            self._markers.erase(",
    ),
    # --- halfmq.spark
    Plant(
        "spark-reads-beyond-the-page",
        5,
        "Spark reads messages that are not visible yet",
        "spark/queue_files.py",
        "                if 0 < visible_at < position:\n",
        "                if 0 < visible_at:\n",
    ),
    Plant(
        "spark-passes-over-what-is-gone",
        0,
        "Spark passes over messages past retention without a word",
        "spark/direct_reader.py",
        "        if first > start:\n            lost(",
        "        if first < start:\n            lost(",
    ),
    Plant(
        "spark-reads-any-store",
        0,
        "a stream goes on in another store than the one of its checkpoint",
        "spark/direct_reader.py",
        "        if self._store != ranges.store:\n",
        "        if not self._store:\n",
    ),
    Plant(
        "spark-skips-at-a-segment",
        0,
        "the first message of each further segment is left out of a batch",
        "spark/direct_reader.py",
        "            at = first\n            for cut in",
        "            at = first + (first > 0)\n            for cut in",
    ),
    # --- halfmq.wire
    Plant(
        "splitter-forgets-the-rest",
        0,
        "the start of a frame is lost when it came behind a whole one",
        "wire/remoting/frame.py",
        "        if at < end:\n            self._pending +=",
        "        if at == 0:\n            self._pending +=",
    ),
    Plant(
        "lengths-are-believed",
        0,
        "a length above the limit is waited for, so that a peer may take any memory",
        "wire/remoting/frame.py",
        "            if total > limit or total < _FRAME_BYTES_MIN:\n",
        "            if total < _FRAME_BYTES_MIN:\n",
    ),
    Plant(
        "check-count-is-forgotten",
        0,
        "a check does not say how often it was asked",
        "wire/remoting/message_codec.py",
        "opaque, ext, with_check_times(stored, checks))",
        "opaque, ext, with_check_times(stored, 1))",
    ),
    Plant(
        "batch-takes-what-does-not-fill-it",
        0,
        "an entry of a batch whose properties end early is taken",
        "wire/remoting/message_codec.py",
        "        if place + properties_bytes != stop:\n",
        "        if place + properties_bytes > stop:\n",
    ),
    # --- halfmq.cli
    Plant(
        "verify-is-always-content",
        10,
        "`halfmq store verify` ends with 0 where something is damaged",
        "cli/store.py",
        "    raise typer.Exit(1 if report.damaged else 0)\n",
        "    raise typer.Exit(0)\n",
    ),
    Plant(
        "operators-need-not-confirm",
        2,
        "an operator's verdict needs no confirmation",
        "cli/tx.py",
        "    if typer.prompt(prompt, err=True).strip() != name:\n",
        "    if typer.prompt(prompt, err=True).strip() == '':\n",
    ),
    Plant(
        "refused-verdicts-are-content",
        0,
        "`halfmq tx` ends with 0 although some verdicts were refused",
        "cli/tx.py",
        "    if refused:\n        raise typer.Exit(REFUSED)\n",
        "    if refused:\n        raise typer.Exit(0)\n",
    ),
    Plant(
        "young-ones-are-settled-too",
        2,
        "`halfmq tx` settles transactions that are younger than was said",
        "cli/tx.py",
        "        wanted = [row.tx_id for row in rows if row.age_ms - aged_ms >= older_ms and row.tx_id not in refused]\n",
        "        wanted = [row.tx_id for row in rows if row.age_ms + aged_ms >= 0 and row.tx_id not in refused]\n",
    ),
)


def planted(source: str, plant: Plant) -> str:
    """``source`` of the plant's file with the bug in it.

    Raises:
        OutOfDate: its text is not there exactly once.
    """
    if source.count(plant.old) != 1:
        raise OutOfDate(f"{plant.name}: its text occurs {source.count(plant.old)} times in {plant.file}")
    return source.replace(plant.old, plant.new)


def plant_into(package: Path, plant: Plant) -> None:
    """Change the file below ``package`` (a copy of ``src/halfmq``, never the checkout)."""
    path = package / plant.file
    path.write_text(planted(path.read_text(), plant))
