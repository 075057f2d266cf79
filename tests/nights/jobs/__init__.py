"""Nights in a row with jobs, by seed."""
