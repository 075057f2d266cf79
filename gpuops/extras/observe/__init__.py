"""Stores the performance counters of VMs and hosts for weeks.

Problem: vCenter keeps single samples for one hour only, and hardly any history of vGPUs. Whether a desktop is used,
how large an ML VM must be and why a VM was slow are questions about days.
Choice: every twenty minutes the samples of the last hour are read in bulk (`observing`) and combined into steps of
five minutes: average, highest, and how much of the step the samples cover (`rolling_up`). Zeros that mean "unknown"
are removed first (`unknown_use`). Steps are stored in packed blocks, one row for each VM and some hours (`packing`),
and also as hours, which are kept longer. Readers get None for missing steps (`store`).
Cost: single samples are lost, and numbers are rounded, by at most 3.2 %.
"""
