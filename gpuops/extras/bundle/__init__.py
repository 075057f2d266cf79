"""Archives for bug reports (`gpuops bundle`): a scenario for the simulator, without names, addresses or texts.

Problem: gpuops was built without a vCenter with GPUs, so its users see the mistakes, in inventories that they cannot
share. A list of what must not get out is never complete: names occur in errors, paths, labels and attributes.

Choice: each field of a bundle is named here (`scenario.yaml`, `world`, `contact`): numbers, moments,
words of the vSphere API, and names that NVIDIA's catalogue has. Any other text becomes a pseudonym (`pseudonyms`), by
a key that stays on the machine, or is left out. Before anything is written, `harmless` checks each key and text again
without knowing where it came from, by the words of `words.yaml`. If it finds any other text, no bundle is written.

Given up: what the snapshot lacks, the simulator invents (guest systems, disks, networks). Texts of errors are also
pseudonyms: `gpuops bundle --reveal` shows the original on the machine that wrote the bundle.
"""
