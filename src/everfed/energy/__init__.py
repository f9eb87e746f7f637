"""Where energy comes from, is stored and is spent."""
