"""The search at a chunk boundary: anchors, candidates, rollouts, scores."""
