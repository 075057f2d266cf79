"""Makes hosts, VMs, clusters and devices of the model from the values of a bulk read."""
