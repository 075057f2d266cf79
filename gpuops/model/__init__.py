"""Frozen values without I/O or clock, shared by all packages. `None` always means unknown, never off, free or zero."""
