"""Nodes that lie, each as its configuration says."""
