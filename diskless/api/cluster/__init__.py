"""The APIs about the broker itself and the cluster."""
