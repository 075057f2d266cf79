"""The simulated vCenter as clients reach it: HTTP, SOAP, VI/JSON, the vSphere Automation API, and the process."""
