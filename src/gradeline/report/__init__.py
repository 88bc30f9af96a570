"""What runs came to, written for others to read: each form is a module of its own."""
