"""What a schedule does to training, judged beforehand: bias, noise, energy, and how far it is from the best."""
