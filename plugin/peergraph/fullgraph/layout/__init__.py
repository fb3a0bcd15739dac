"""Which rank holds which rows."""
