"""The description of the API, made of its endpoints: OpenAPI, and a page for people."""
