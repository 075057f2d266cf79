"""GPUs and other devices of hosts: boards, profiles, modes, schedulers. Imports nothing else of the model."""
