"""Research plugins: environments, roles, rewards, algorithms."""
