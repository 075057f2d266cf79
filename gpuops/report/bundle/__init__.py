"""What `gpuops bundle` writes for a bug report: a world that the simulator plays, and no name, address or text of it.

Problem: gpuops was built without a vCenter with GPUs, so what it gets wrong is seen by others, in inventories that
nobody hands out. A list of what must not get out is never whole: names stand in errors, paths, labels and attributes.

Choice: nothing is taken out, things are put in. Each field that a bundle has is named here (`world`, `world_vms`,
`versions`, `contact`): numbers, moments, words of the vSphere API, and names that NVIDIA's catalogue has. Any other text
becomes a pseudonym (`pseudonyms`), by a key that stays at home, or is left out. Before anything is written `harmless`
goes through all of it again and knows nothing of where it came from: one text that is none of these, and there is no
bundle.

Given up: what the snapshot does not tell, the simulator makes up (guest systems, disks, networks), and texts of errors
are pseudonyms too: `gpuops bundle --name` tells, at home, what one stands for.
"""
