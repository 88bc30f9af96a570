"""Reading what users write: files with the place of every value, datasets, cases."""
