"""Policies and queues of rotations, and what journals and markers keep of nights."""
