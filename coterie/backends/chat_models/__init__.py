"""Chat models: providers' models, a frozen policy of the run, and rules without a network."""
