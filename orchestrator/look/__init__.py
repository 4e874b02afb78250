"""How every page of ours looks: colours in light and dark, letters, helpers in JavaScript."""
