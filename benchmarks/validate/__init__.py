"""How near the replay's costs and its engine room come to what others measured."""
