"""Reading hostile text: JSON, numbers, regular expressions, each bounded in time and depth."""
