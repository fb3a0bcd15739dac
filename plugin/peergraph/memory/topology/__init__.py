"""Links between GPUs and to the host: what is known of a machine, and where it is kept."""
