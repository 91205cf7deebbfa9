"""Training procedures. They know no engine: what they need of the outside is handed to them."""
