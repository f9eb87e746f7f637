"""From a fleet of devices to a decision: who is starved, why, and what to change first."""
