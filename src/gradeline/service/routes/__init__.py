"""The routes of the REST API, one module for each kind of resource."""
