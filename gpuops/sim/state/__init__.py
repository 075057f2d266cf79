"""What is kept of GPUs, VMs, hosts and clusters: plain values and pure rules."""
