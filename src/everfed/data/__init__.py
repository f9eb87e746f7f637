"""Federated data: what each client holds, and what everybody is tested on."""
