"""What people look at after a run: a table in the terminal, a figure, and a page."""
