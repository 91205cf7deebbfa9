"""Stateless tensor workers: they hold no graph, and may run a task twice, late or elsewhere.

What a serverless function runs needs NumPy and the standard library alone.
"""
