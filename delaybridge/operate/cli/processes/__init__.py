"""Commands that start a process, or prepare one."""
