"""Metrics of a broker with an HTTP port: what is counted on the way, and what a scrape reads.

``families`` says which series there are. ``counts`` are the counters that nothing else keeps; a broker without an HTTP port has none of
them. ``scrape`` reads the state and the counters, in steps, and ``exposition`` writes the text that Prometheus reads; its library is
imported by nothing else. Decision 0081.
"""
