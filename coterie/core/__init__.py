"""The core: the loop and everything that it needs to know; never torch, never a plugin."""
