"""Rotation: idle desktops give up their GPUs at night, ML VMs run on them, and every desktop is back in the morning.

`RotateNight`, `RotateDay` and `RestoreVms` are the requests that `execute` carries out. See README.md.
"""
