"""Guests that run real processes of this machine: their processes, and their directories of files.

For scenarios that ask for it (`guests: NAME: {processes: real}`). It knows neither the vSphere API nor the inventory.
"""
