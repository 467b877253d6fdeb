"""Programs that a rig starts as processes of their own; most import nothing of delaybridge."""
