"""Executes the steps of a plan, and settles those that a killed run left in flight."""
