"""Server rules, and server optimisers that compose with them."""
