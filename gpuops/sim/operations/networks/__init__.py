"""Distributed switches, their port groups, members and ports."""
