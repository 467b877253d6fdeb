"""Who may do what: tokens, sessions of browsers, and throttles for those who guess."""
