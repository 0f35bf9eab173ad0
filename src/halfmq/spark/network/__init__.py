"""Readers of brokers: halfmq, one or several, and Apache RocketMQ."""
