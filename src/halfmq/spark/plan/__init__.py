"""What a query reads, from options, offsets and the bounds of queues; and what is missing. No I/O."""
