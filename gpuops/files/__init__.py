"""Reads and writes single files: text with its limits, the values of JSON, TOML and YAML with the places of mistakes,
archives of bug reports, private files, and the templates that gpuops brings.

`gpuops.config` makes classes of the model from these values. The simulator reads its files by this package alone.
"""
