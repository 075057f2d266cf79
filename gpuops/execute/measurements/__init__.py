"""Keeps for weeks what the performance counters of VMs and hosts said.

Problem: vCenter keeps every sample for one hour alone, and of vGPUs hardly anything longer; whether a desktop is used,
how large an ML VM must be and why one was slow are questions about days.
Choice: every twenty minutes the samples of the hosts' last hour are read in bulk (`observing`), and put together to
steps of five minutes: average, highest, and of how much of the step there were samples (`rolling_up`). What is 0 only
because it is unknown is left out first (`unknown_use`). Steps lie packed in blocks, one row for a VM and some hours
(`packing`), and again as hours, which are kept longer. Whoever reads gets None for what is missing (`store`).
Given up: the single samples, and exact values: one is off by 3.2 % at most.
"""
