"""Model loading and tokenizers, shared by engines and trainers."""
