"""HTTP without a word about messages: requests, access, problems, tenants."""
