"""The engine `vllm`: vLLM servers that follow the trainer's weights."""
