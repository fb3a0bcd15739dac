"""A fuzzer of :meth:`Store.ingest`: random files, read back and compared with an own reading."""
