"""GRPO, small and plain: weights and their storage, sampling, the loss, and one step.

``weights`` says what the optimizer steps and what the forward pass reads; ``rollout`` samples answers and scores
them; ``grpo`` holds the loss; ``loop`` joins them into a trainer. ``prefix_tree`` is why it is fast: all sequences of
a step are computed as one tree of distinct prefixes.
"""
