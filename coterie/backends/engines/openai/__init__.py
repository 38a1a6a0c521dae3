"""The engine `openai`: models behind an endpoint that speaks OpenAI's protocol."""
