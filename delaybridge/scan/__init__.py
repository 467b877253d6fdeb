"""The heart: claims due messages, fires them at their instant, publishes them and settles them."""
