"""The protocol of buckets, without I/O: keys, commands, replies."""
