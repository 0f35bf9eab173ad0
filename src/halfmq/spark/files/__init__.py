"""Readers of a store's files, beside a running broker or without one."""
