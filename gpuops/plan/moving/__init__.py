"""Where VMs can go by vMotion: the fewest moves that free the most GPUs or vGPU slots, in an order in which each finds
its room. `gpuops defrag`, `plan/queue/suggestions.py` and `plan/hosts/change` call it. See README.md.
"""
