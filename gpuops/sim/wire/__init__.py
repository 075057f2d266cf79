"""The simulated vCenter as clients reach it: HTTP, SOAP, the tag services, and the process that serves it."""
