"""The HTTP API: a table of endpoints, each of which is answered by a function of a call.

`app` finds the endpoint, checks access and reads the request; `table` lists them. Every answer is
JSON, every error a problem of RFC 9457.
"""
