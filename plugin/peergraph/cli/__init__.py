"""The command line `peergraph`, and kinds of arguments for commands of other packages."""

from peergraph.cli.arguments import byte_count, integers

__all__ = ["byte_count", "integers"]
