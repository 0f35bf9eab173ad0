"""Writes of ``format("halfmq")``: ``df.write`` and ``df.writeStream``, exactly once, or with ``guarantee=atLeastOnce`` at least once.

Exactly once, to a halfmq broker:
    tasks    ask for the decision on the batch, and prepare their rows as half batches, which are durable and invisible
    driver   syncs the input of the batch in the checkpoint and sends one decision; the first one stands, so a repeated batch changes nothing
At least once, to Apache RocketMQ or halfmq: tasks send their rows as ordinary messages, and the driver does nothing.

options.py       options                                columns.py       rows to bodies, properties and queues
waiting.py       rows to requests                       message_ids.py, java_hashes.py   parts of it, vectorised
attempt.py       which batch and attempt a task is      writer.py        Spark's interfaces

exactly once                                            at least once
encoder.py       rows to payloads of half batches       plain_encoder.py   rows to messages and batches of them
task.py          a task                                 plain_task.py      a task
broker.py        requests                               plain_broker.py    requests, over several brokers
checkpoint.py    Spark's files: sync
batch_input.py   what a batch is made of, by kind of source: digest
decide.py        the driver
"""
