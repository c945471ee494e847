"""Imports specifications from configurations of Hugging Face, Megatron-LM, torchtitan and DeepSpeed."""
