"""Topics that are there before anybody sends to them: a consumer finds one that comes later only after a second."""

from halfmq import AsyncClient
from halfmq.wire.remoting.codes import RequestCode


async def make_topics(url: str, *names: str) -> None:
    """Make topics of one queue at the broker that ``url`` names."""
    async with AsyncClient(url) as mq:
        (broker,) = mq._context.brokers.established()
        for name in names:
            fields = {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
            queues = {"readQueueNums": "1", "writeQueueNums": "1"}
            made = await broker.request(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name, **fields, **queues})
            assert made.code == 0, made.remark
