"""Reads what guests are and what runs in them."""
