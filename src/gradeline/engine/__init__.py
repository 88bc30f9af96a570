"""The four phases of a run: plan, execute, grade, aggregate, each in a module of its own."""
