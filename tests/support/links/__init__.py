"""A link between a store and its server that can be made bad: slow, deaf, cut, and cut at the worst moment."""
