"""Every setting: its default, where its value comes from, and what is accepted."""
