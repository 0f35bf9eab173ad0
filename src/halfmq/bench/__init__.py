"""Load and yardstick: programs that measure the broker from outside, with raw frames, and write JSON."""
