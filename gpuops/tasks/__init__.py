"""Tasks: the entrance of Ansible: what a task says becomes a request, and what came of it a plain answer.

The modules of the collection `gpuops.vsphere` call these functions and nothing else of gpuops. Like the command line
they parse, run through `gpuops.api` and render: there is no decision here.
"""
