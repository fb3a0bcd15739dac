"""What a store says of itself: the memory that it takes, what was read from where."""
