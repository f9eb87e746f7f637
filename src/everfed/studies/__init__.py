"""Many runs: sweeps, what they found, tuning, and where their variance comes from."""
