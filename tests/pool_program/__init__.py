"""A program that stands in for one that moves CUDA calls over the network: it gives out numbers in place of memory."""
