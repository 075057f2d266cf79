"""A simulated Horizon Connection Server: its REST API over the VMs of a simulated vCenter."""
