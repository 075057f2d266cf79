"""Archives for bug reports (`gpuops bundle`): a scenario for the simulator, without names, addresses or texts.

A list of what must be left out is never complete, so each field that is written is listed (`scenario.yaml`): numbers,
times, words of the vSphere API, and names of NVIDIA's catalogue. Any other text becomes a pseudonym, by a key that
stays on the machine, or is left out. Before anything is written, each key and text is checked again without knowing
where it came from (`words.yaml`). The simulator invents what is missing: guest systems, disks, networks.
"""
