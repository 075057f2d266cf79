"""Carries out nights and mornings, and the commands about them; `gpuops.api` names its functions."""
