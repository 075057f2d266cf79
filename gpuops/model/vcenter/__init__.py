"""Hosts, VMs, the inventory of both and roles, as a vCenter holds them, and how to log in to it."""
