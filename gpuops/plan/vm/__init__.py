"""Changes of VMs that exist, and clones: `attach`, `detach`, several of them in one plan, and `Clone`."""
