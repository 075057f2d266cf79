"""Nights: what they plan and did, the queue of ML VMs, idle desktops, the broker's pools, past nights."""
