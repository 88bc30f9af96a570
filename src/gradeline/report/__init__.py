"""Reports of a run: HTML, JUnit XML, Markdown and tables."""
