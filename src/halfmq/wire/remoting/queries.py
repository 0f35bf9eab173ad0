"""Commands of halfmq for queries, the applications with numbered batches whose decisions a broker remembers.

    HMQ_QUERIES       29017  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``QueryInfo``, ...]
    HMQ_FORGET_QUERY  29018  ext ``query``, ``queryTopic``, ``operator``, ``reason``
        response  code 0, ext ``lastBatch``: the last one that was decided, -1: none; 1: no such query; 2: it has undecided batches

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from typing import Final

from halfmq.model.pending import QueryInfo
from halfmq.wire.remoting.json_body import JsonBody

EXT_QUERY: Final = "query"
EXT_QUERY_TOPIC: Final = "queryTopic"
EXT_LAST_BATCH: Final = "lastBatch"
#: Response body of HMQ_QUERIES.
QUERIES: Final = JsonBody(list[QueryInfo], "a response to HMQ_QUERIES is")
