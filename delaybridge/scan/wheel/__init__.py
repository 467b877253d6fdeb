"""From the claim to the publish: copies wait for their millisecond."""
