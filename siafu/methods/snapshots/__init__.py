"""Training on graphs that change over time: ranks own steps, rows are turned from steps to nodes and back."""
