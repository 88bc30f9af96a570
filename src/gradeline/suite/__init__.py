"""Suite files, datasets and cases: declarations, readers and the JSON Schema."""
