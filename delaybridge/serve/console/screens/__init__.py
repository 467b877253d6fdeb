"""The pages of the console, and the table of them."""
