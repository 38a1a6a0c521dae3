"""YAML recipes, one per experiment."""
