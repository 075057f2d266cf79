"""Whether guests are ready for work on their GPUs: the program that asks them, its answer read, and a verdict a row.

Pure: what runs the program and brings its output is `vsphere.writing.guest_answers` or `hostshell.guest_answers`.
"""
