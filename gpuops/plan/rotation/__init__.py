"""Plans the rotation: idle desktops are suspended at night, ML VMs run on their GPUs, all return in the morning.

`RotateNight`, `RotateDay` and `RestoreVms` are the requests that `execute` carries out. See README.md.
`nights`, `ml_queue` and `returns` have what it takes; what all of them use, and leases, `rotate init` and `rotate
status`, stand beside them.
"""
