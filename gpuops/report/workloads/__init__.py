"""What runs on GPUs: clusters of VMs, pools of lent GPUs, jobs in containers."""
