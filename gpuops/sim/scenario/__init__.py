"""Worlds made from declared inventories, and saved between two runs."""
