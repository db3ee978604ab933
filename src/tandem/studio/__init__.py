"""``tandem studio``: a local web page to see fronts, choose a policy, and watch trainings and fleets."""
