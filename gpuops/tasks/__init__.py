"""What the modules of Ansible call: the arguments of a task become a request, and its report a plain result.

`perform` runs the function that has the name of the module. Like the command line these functions parse, run through
`gpuops.api` and render; they decide nothing. Their parameters are the arguments of their modules; those that are fields
of a request they take as `options`, in which None means that the task leaves one out.
"""
