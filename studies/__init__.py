"""Scripts behind the pages of docs/results; each documents its command and its output."""
