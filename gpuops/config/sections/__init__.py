"""Sections of a policy file, one module each: what may stand there, checked, and the value it means."""
