"""Pure decisions: where a request runs and when its decode changes hands."""
