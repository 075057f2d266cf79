"""Managed objects: one type, one file, named after the type."""
