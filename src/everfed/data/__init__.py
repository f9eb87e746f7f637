"""Federated data: clients' samples and a common test set."""
