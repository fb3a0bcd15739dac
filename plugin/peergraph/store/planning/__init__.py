"""Plans for any machine: the cost model, the choice of tiers, the solver, policies by name."""
