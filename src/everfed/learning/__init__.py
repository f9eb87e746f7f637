"""What a participant does with a round."""
