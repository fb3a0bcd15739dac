"""What makes and checks a release: wheels, and runs of them in empty environments."""
