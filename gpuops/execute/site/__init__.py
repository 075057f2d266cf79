"""One vCenter to work on: `Site`, the ports to vCenter and hosts, and a saved inventory in the place of them."""

from gpuops.execute.site.site import Consent, Site, agreed, catalog_of

__all__ = ["Consent", "Site", "agreed", "catalog_of"]
