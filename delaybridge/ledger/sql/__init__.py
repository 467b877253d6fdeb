"""The database: tables, rows, transactions."""
