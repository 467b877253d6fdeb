"""Programs that a rig starts as separate processes; most do not import delaybridge."""
