"""Commands to begin with, and those that describe gpuops itself."""
