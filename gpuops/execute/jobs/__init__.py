"""Runs jobs in containers of guests, through guest operations."""
