"""Lends shares of GPUs over the network: who gets which, from when until when. Pure; README.md says how."""
