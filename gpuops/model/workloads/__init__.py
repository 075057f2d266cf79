"""What runs on GPUs: VMs to place, clusters, jobs, leases of pools."""
