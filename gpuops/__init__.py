"""gpuops: attach, place, rotate and explain NVIDIA GPUs on vSphere."""

__version__ = "0.1.0"
