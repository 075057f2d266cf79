"""What `gpuops bundle` writes for a bug report: a world that the simulator plays, and no name, address or text of it.

Problem: gpuops was built without a vCenter with GPUs, so what it gets wrong is seen by others, in inventories that
nobody hands out. A list of what must not get out is never complete: names stand in errors, paths, labels, attributes.

Choice: each field that a bundle has is named here (`scenario.yaml`, `world`, `contact`): numbers, moments,
words of the vSphere API, and names that NVIDIA's catalogue has. Any other text becomes a pseudonym (`pseudonyms`), by
a key that stays on the machine, or is left out. Before anything is written, `harmless` checks each key and text again
without knowing where it came from, by the words of `words.yaml`. If it finds any other text, no bundle is written.

Given up: what the snapshot does not hold, the simulator makes up (guest systems, disks, networks). Texts of errors are
pseudonyms too: `gpuops bundle --name` says, on the machine that wrote the bundle, what one stands for.
"""
