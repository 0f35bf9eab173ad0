"""Stored messages, their properties and bodies as Arrow columns. No I/O."""
