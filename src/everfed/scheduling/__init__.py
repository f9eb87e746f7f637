"""Schedules: each client decides when it trains."""
