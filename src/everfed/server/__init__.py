"""What the server does with the participants' updates: rules, and optimisers that compose with them."""
