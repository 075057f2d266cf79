"""Connection brokers: Omnissa Horizon by its REST API."""
