"""What counters say of VMs, hosts and GPUs, and cases made of it."""
