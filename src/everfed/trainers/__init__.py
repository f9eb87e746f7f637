"""Which trainer a task gets, and the check of it against plain autograd."""
