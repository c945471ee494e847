"""Specifications from what other programs are configured by: Hugging Face, Megatron-LM, torchtitan, DeepSpeed."""
