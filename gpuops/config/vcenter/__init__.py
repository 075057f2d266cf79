"""The settings of a vCenter: its address, the login, and its entry in the configuration file."""
