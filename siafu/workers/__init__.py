"""Stateless tensor workers and the queue that feeds them. A worker holds no graph and may run a task twice or late.

The modules that a serverless function imports need the standard library, NumPy and xxhash alone.
"""
