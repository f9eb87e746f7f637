"""Who trains when, decided by each client for itself."""
