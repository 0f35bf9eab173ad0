"""A read-only front door in HTTP/1.1, for probes, Prometheus and dashboards: ``halfmq serve --http-port``.

    GET /health                                       200, or 503 with the reason; JSON
    GET /healthz                                      200 while the process is alive, 503 if it has to stop; JSON
    GET /readyz                                       200 while it serves, or 503 with the reasons; JSON
    GET /metrics                                      series for Prometheus; text
    GET /transactions/undecided?group=&max=&from=     as ``halfmq tx list``; JSON

It translates to and from ``broker.services`` and knows no other front door. Decision 0039.
"""
