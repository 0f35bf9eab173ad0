"""Benchmarks: load generators and a baseline server; they measure a broker process from outside."""
