"""What a namespace is: buckets, rules, rights, limits, alarms."""
