"""Jobs in containers: what is run in the guest, where jobs fit, and what each then takes. Pure."""
