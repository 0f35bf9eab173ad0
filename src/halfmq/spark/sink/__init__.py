"""Writes of ``format("halfmq")``, exactly once: ``df.write`` and ``df.writeStream``.

tasks    ask for the decision on the batch, and prepare their rows as half batches, which are durable and invisible
driver   syncs offsets/N of the checkpoint and sends one decision; the first one stands, so a repeated batch changes nothing

options.py       options                                columns.py       rows to bodies, properties and queues
encoder.py       rows to payloads of half batches       message_ids.py, java_hashes.py   parts of it, vectorised
attempt.py       which batch and attempt a task is      task.py          a task
checkpoint.py    Spark's files: sync and digest         decide.py        the driver
broker.py        requests                               writer.py        Spark's interfaces
"""
