"""Nights and mornings carried out, and the commands about them; `api/rotation.py` calls it."""
