"""Makes, shows and removes clusters of VMs for training."""

from gpuops.execute.cluster.standing import standing as standing

__all__ = ["standing"]
