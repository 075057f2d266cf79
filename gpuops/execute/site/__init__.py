"""One vCenter to work on: `Site`, the ports to vCenter and hosts, and a saved inventory in place of them."""

from gpuops.execute.site.site import WITHOUT_GUESTS, Consent, Site, agreed, catalog_of, once_agreed

__all__ = ["WITHOUT_GUESTS", "Consent", "Site", "agreed", "catalog_of", "once_agreed"]
