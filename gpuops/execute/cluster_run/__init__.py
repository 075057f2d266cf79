"""Runs a program over the VMs of a cluster, through guest operations, and measures an all-reduce over them."""
