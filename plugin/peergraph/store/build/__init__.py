"""Building: from what the ranks bring to structures and tables that are filled."""
