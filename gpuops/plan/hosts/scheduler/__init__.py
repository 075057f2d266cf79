"""Reads and changes the vGPU scheduler of hosts.

Problem: the policy is one number, RmPVMRL, inside one of many options of the `nvidia` kernel module, which are read at
boot; and driver branches read the same number differently. Choice: gpuops stores no number. It decodes and encodes it
for the host's own driver branch, and edits the option string in place, so that all other text stays byte for byte. What
this gives up: a policy that `nvidia-smi vgpu set-scheduler-state` sets until the next boot is not seen, because vCenter
does not report it.
"""
