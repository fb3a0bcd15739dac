"""Measuring the links of a machine, with the gather that will use them."""
