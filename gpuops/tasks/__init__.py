"""What the modules of Ansible call: the arguments of a task become a request, and its report a plain result.

The modules of the collection `gpuops.vsphere` call these functions and nothing else of gpuops. Like the command line
they parse, run through `gpuops.api` and render; they decide nothing.
"""
