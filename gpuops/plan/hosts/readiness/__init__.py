"""Whether hosts with GPUs can be emptied, and whether one of them can be lost. `gpuops readiness` shows it and
changes nothing. The moves are those of a rolling change of that host (`plan/hosts/change/emptying.py`).
"""
