"""Connection brokers: Omnissa Horizon by its REST API, and the policy's word for pools that no broker hands out."""
