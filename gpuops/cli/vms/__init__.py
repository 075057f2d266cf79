"""Commands that give VMs GPUs, take them away, and move VMs to free some."""
