"""Runs on a Ray cluster: the driver plans chunks of cases, and workers on every node execute them.

A worker calls the agent, grades, and writes directly to PostgreSQL; the driver only gets counts. The chunks of a worker
that died are repeated by another, which finds in the store what is done.
"""
