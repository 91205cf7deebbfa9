"""Recipes: defaults that fit a graph and its task, and the plan of a race among them."""
