"""Imported by every Python process that a test starts: it has the time of day of the test that started it.

The tests put this folder on PYTHONPATH and the offset in SURROUNDINGS_AHEAD_S; no installation of gpuops has this file,
so no environment can give a real rotation a wrong time.
"""

import os

if "SURROUNDINGS_AHEAD_S" in os.environ:
    try:
        from gpuops.clock import set_ahead
    except ImportError:
        pass  # a Python without gpuops
    else:
        from datetime import timedelta

        set_ahead(timedelta(seconds=float(os.environ["SURROUNDINGS_AHEAD_S"])))
