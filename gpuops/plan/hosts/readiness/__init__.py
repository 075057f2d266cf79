"""Whether each host with GPUs can be emptied, and whether the cluster could restart its VMs if it failed.

`gpuops readiness` shows it and changes nothing. The moves are those of a rolling change (`change/emptying.py`).
"""
