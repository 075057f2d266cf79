"""Keeps the GPUs of a fleet as arrays, so that a place among them is found in about a millisecond. See ../README.md."""
