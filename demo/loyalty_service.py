"""The loyalty service: consumes ``loyalty`` and credits points, exactly once, with an inbox in its own database.

Delivery is at least once: after a restart of the broker or of this service messages come again. Each batch is one
transaction: inbox rows, entries and balances together; acknowledged only after its COMMIT.
"""

import argparse
import logging
import signal
import sys
import time
from pathlib import Path

from sqlalchemy.orm import sessionmaker

from demo import loyalty_db
from demo.messages import LoyaltyMessage
from demo.patient_client import connected
from demo.run import LOYALTY_GROUP, LOYALTY_TOPIC, Run
from demo.shop_db import connect

#: Points need not be credited at once: a pause makes fewer and larger transactions.
GATHER_S = 0.1

log = logging.getLogger("demo.loyalty_service")


def serve(run: Run) -> None:
    sessions = sessionmaker(connect(run.loyalty_db))
    with connected(run.url, LOYALTY_GROUP) as mq, mq.consumer(LOYALTY_TOPIC, group=LOYALTY_GROUP) as messages:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: messages.stop())
        duplicates = 0
        for batch in messages.batches(max=200, wait=0.5):
            if not batch:
                continue
            with sessions() as session:
                firsts = [one for one in batch if loyalty_db.inbox.claim(session, one, group=LOYALTY_GROUP)]
                if firsts:
                    loyalty_db.credit(session, [one.decode(LoyaltyMessage) for one in firsts])
                session.commit()
            batch.ack()
            duplicates += len(batch) - len(firsts)
            time.sleep(GATHER_S)
        log.info("%d messages came twice and counted once", duplicates)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    serve(Run.load(arguments.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
