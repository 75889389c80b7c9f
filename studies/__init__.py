"""Scripts behind the pages of docs/results; each says how it is called and what it makes."""
