"""Weight delivery: one copy of a model from its origin, onto every node, verified, before anything reads it."""

VERSION = "0.1.0"
