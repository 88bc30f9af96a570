"""GitHub and GitLab: the change that a CI job belongs to, and the comment on its pull request."""
