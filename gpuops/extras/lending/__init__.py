"""`gpuops pool` lends parts of a GPU's memory over the network to VMs without a GPU, for an agreed time.

A program such as those in `templates/remote-gpu` carries the CUDA calls; gpuops decides who gets which share, stores
the leases, and runs the program's hooks in the guests of servers and clients. README.md has the rules and the modules.
Nights and moves see a server by the mark on its VM (`gpuops.advise.managed_vms`).
"""
