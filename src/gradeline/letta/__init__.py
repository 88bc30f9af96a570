"""letta-evals and letta: targets, judge, graders, result files, and the names that suite code imports."""
