"""GitHub and GitLab: what a job knows of its change, and the comments of a pull request."""
