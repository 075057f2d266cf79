"""The managed objects that every vCenter has, and the property collectors of its sessions."""
