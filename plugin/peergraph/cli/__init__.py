"""The `peergraph` command: one module per subcommand."""
