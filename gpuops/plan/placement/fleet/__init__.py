"""The fleet as arrays: places for VMs among thousands of GPUs in about a millisecond. See ../README.md."""
