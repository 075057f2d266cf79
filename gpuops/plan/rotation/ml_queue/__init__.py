"""Which ML VMs of the queue start, in which order, on which GPUs, for which team."""
