"""Archives for bug reports (`gpuops bundle`): a scenario for the simulator, without names, addresses or texts.

Problem: gpuops was built without a vCenter with GPUs, so its users see the mistakes, in inventories that they cannot
share. A list of what must not get out is never complete: names occur in errors, paths, labels and attributes.

Choice: each field of a bundle is named here: numbers, moments, words of the vSphere API, and names that NVIDIA's
catalogue has. Any other text becomes a pseudonym, by a key that stays on the machine, or is left out. Before anything
is written, each key and text is checked again without knowing where it came from, by the words of `words.yaml`. If the
check finds any other text, no bundle is written.

Cost: the simulator invents what the snapshot lacks (guest systems, disks, networks). Texts of errors are also
pseudonyms: `gpuops bundle --reveal` shows the original on the machine that wrote the bundle.

* `archive.py`       gathers a bundle, and shows it
* `world.py`         its scenario, by the table `scenario.yaml`, and its first contact
* `harmless.py`      pseudonyms, and the check
* `bundle_names.py`  key and names in the state directory
* `cli.py`           the command, which the core reaches by the table in `gpuops/extensions.py`
"""
