"""Runs the commands of `gpuops pool`: keeps the book of leases, sets up guests, and marks servers."""
