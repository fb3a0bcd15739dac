"""Plans that fit this machine: what they take, what is free, what goes to disk."""
