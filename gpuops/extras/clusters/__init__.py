"""Plans clusters of VMs for training: what hosts and template must have, where each VM goes, what makes it."""
