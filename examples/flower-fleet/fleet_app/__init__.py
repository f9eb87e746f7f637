"""Eight devices on harvested energy train one model."""
