"""The console: pages for people, at `/`.

A page is an endpoint that answers with HTML (`page.py`), made of a template and of what a function
finds out. Nothing here changes anything: buttons send requests to the API, as other clients do.
"""
