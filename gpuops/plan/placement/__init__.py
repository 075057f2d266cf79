"""On which host, NUMA node and GPUs the devices of a VM go, and why not elsewhere: feasible, rank, select.

See README.md.
"""
