"""VMs as Ansible shows them, and the moves of VMs that free GPUs."""
