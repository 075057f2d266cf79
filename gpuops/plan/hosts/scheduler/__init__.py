"""The vGPU scheduler of hosts: what it is set to, and the change of it.

Problem: the policy is one word, RmPVMRL, inside one option among others of the `nvidia` kernel module, read at boot;
and two driver branches read the same word differently. Choice: the word is never kept; it is decoded as the host's own
branch reads it and encoded anew, and the option string is edited in place, so that what is not ours stays as it is,
byte for byte. What we gave up: the policy that `nvidia-smi vgpu set-scheduler-state` sets until the next boot cannot be
seen, because no call of vCenter tells it.
"""
