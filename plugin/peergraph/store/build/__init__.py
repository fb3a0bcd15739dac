"""Building: plans, allocates and fills a store from the ranks' sources."""
