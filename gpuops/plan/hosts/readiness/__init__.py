"""Whether hosts with GPUs can be emptied, and whether one of them can be lost. `gpuops readiness` asks; nothing is
changed. Who leaves for where is what a rolling change does with that host (`plan/hosts/change/emptying.py`).
"""
