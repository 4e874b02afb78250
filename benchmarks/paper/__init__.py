"""The paper's result, in its own set-up as far as its figures tell it."""
