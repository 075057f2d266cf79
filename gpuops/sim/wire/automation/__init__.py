"""The vSphere Automation API: its services, and the two wires that they are called by."""
