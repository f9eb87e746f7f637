"""One run: its description, its parts, and the loop that goes through its rounds."""
