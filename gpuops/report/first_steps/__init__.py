"""The login, the configuration file, the simulator."""
