"""Nouns: frozen values without I/O, clock or wire. `None` always means unknown, never off, free or zero."""
