"""Carries out what a pool of lent GPUs asks for."""
