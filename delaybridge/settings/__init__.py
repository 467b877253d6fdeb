"""Settings: their defaults, the sources of their values, and every check that they must pass.

`sources.py` merges flags, environment and file, in this order. `settings.py` loads them,
`sections.py` describes each, and every refusal names the flag, variable or file at fault.
"""
