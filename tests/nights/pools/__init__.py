"""Nights of pools of lent GPUs, by seed."""
