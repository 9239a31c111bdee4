"""Grading notebooks from strangers: what they run is boxed in, and what it answers is judged outside."""
