"""A read-only front door in HTTP/1.1, for probes and dashboards: ``halfmq serve --http-port``.

    GET /health                                       200, or 503 with the reason; JSON
    GET /transactions/undecided?group=&max=&from=     as ``halfmq tx list``; JSON

It translates to and from ``broker.services`` and knows no other front door. Decision 0039.
"""
