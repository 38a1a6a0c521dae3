"""Trainer `deepspeed`: ZeRO, with an engine of DeepSpeed's for each trained policy."""
