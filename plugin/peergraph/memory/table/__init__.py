"""Tables: rows spread over tiers, and every way to read and write them."""
