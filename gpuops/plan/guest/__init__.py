"""Judges whether guests are ready for work on their GPUs: parses the output of `gpuops/guest_scripts/check_guest.*`.

Pure: `vsphere.guests.guest_answers` or `hostshell.guest_ssh` runs the script and fetches its output.
"""
