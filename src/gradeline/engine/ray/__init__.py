"""Runs on a Ray cluster: the driver plans and hands out chunks of cases, workers on every node do them.

A worker asks the agent, grades, and writes straight to PostgreSQL; the driver hears counts alone. What a dead worker
had in hand is done again by another, which finds in the store what was done before.
"""
