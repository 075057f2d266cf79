"""Judges whether guests are ready for work on their GPUs: parses the output of `gpuops/guest_scripts/check_guest.*`.

Pure: `vsphere.writing.guest_answers` or `hostshell.guest_answers` runs the script and fetches its output.
"""
